"""What the launcher does beside a launch: limits, ranks that stay behind, processes that wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.isolation.mode import Mode
from gpurun.options import Target, TargetKind
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.spec import TrialSpec
from gpurun.trials import launcher as launcher_module
from gpurun.trials.launcher import GRACE_SECONDS, TrialLauncher
from gpurun.trials.live_trials import PairEnd
from gpurun.trials.progress import Progress
from gpurun.trials.request import LaunchRequest, Ranks
from gpurun.trials.stop_rules import first_rule
from gpurun.trials.turn_ratio import TurnRatio


def request(folder: Path, name: str = "one", **more: Any) -> LaunchRequest:
    return LaunchRequest(
        name=name,
        run_dir=folder / name,
        target=Target(TargetKind.SCRIPT, "train.py"),
        cwd=folder,
        environment={},
        trial=TrialSpec(stop=first_rule(20)),
        **more,
    )


class Killed:
    """Stands in for a box that is only ever killed."""

    killed = False

    def kill(self) -> None:
        self.killed = True


def look(folder: Path, seconds: tuple[float, ...], *, stopped: bool, **more: Any) -> Any:
    """What is said of a launch after so many seconds, and whether it was killed."""
    asked = request(folder, **more)
    supervision = TrialLauncher(folder, Mode.IN_PLACE)._supervision(asked)
    box: Any = Killed()
    progress = Progress(folder, folder / "output.log")
    progress.stopped = stopped
    said = [supervision.look(box, progress, each) for each in seconds]
    assert all(each is None for each in said[:-1])
    return said[-1], box.killed


def test_a_launch_is_given_up_at_its_limit(tmp_path: Path) -> None:
    failure, _ = look(tmp_path, (4.0, 6.0), stopped=False, limit_seconds=5.0)
    assert failure.kind is FailureKind.OUT_OF_TIME


def test_processes_that_outlive_one_that_has_seen_enough_are_killed(tmp_path: Path) -> None:
    late = 30.0 + GRACE_SECONDS + 1
    assert look(tmp_path, (30.0, 31.0), stopped=True) == (None, False)
    assert look(tmp_path, (30.0, late), stopped=True) == (None, True)
    assert look(tmp_path, (30.0, late), stopped=False) == (None, False)


def test_ranks_that_must_all_finish_have_as_long_as_the_first_one_took(tmp_path: Path) -> None:
    ranks = Ranks(("--nproc-per-node=2",), to_finish=2)
    assert look(tmp_path, (30.0, 59.0), stopped=True, ranks=ranks) == (None, False)
    failure, _ = look(tmp_path, (30.0, 61.0), stopped=True, ranks=ranks)
    assert failure.kind is FailureKind.RANK_LEFT_BEHIND


class Waiting:
    """Processes that wait, as far as they are told to stop and to go on."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stop(self) -> None:
        self.told.append("stop")

    def go_on(self) -> None:
        self.told.append("go on")


RATIO = TurnRatio(0.1, 0.01, 20)


@pytest.mark.parametrize(
    ("end", "pair", "sides"),
    [
        (PairEnd(RATIO, (0, 0), 9.0, ""), None, [None, None]),
        (PairEnd(None, (0, 0), 9.0, ""), FailureKind.TOO_FEW_STEPS, [None, None]),
        (PairEnd(None, (None, 7), 9.0, "two ended with exit code 7"),
         FailureKind.EXIT_CODE, [FailureKind.PARTNER_ENDED, FailureKind.EXIT_CODE]),
        (PairEnd(None, (None, None), 9.0, "one gave no sign of life"),
         FailureKind.HUNG, [FailureKind.HUNG, FailureKind.HUNG]),
    ],
)  # fmt: skip
def test_a_pair_says_what_befell_it_and_is_measured_while_others_stand_still(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: PairEnd,
    pair: FailureKind | None,
    sides: list[FailureKind | None],
) -> None:
    def run_live(sides: Any, ready: Any, draws: Any, deadline: float) -> PairEnd:
        ready()
        return end

    monkeypatch.setattr(launcher_module, "run_live", run_live)
    launcher = TrialLauncher(tmp_path, Mode.OVERLAY)
    waiting: Any = Waiting()
    launcher.prestarted = waiting
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    found = launcher.run_pair(request(tmp_path, "one"), request(tmp_path, "two"))
    assert waiting.told == ["stop", "go on"]
    assert _kind(found.failure) is pair
    assert found.first is not None
    assert found.second is not None
    kinds = [_kind(side.failure) for side in (found.first, found.second)]
    # these recorded nothing, so that one which ended well took too few steps
    assert kinds == [kind or FailureKind.TOO_FEW_STEPS for kind in sides]


def _kind(failure: Failure | None) -> FailureKind | None:
    return None if failure is None else failure.kind
