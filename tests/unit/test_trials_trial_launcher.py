"""What the launcher does beside a launch: limits, ranks that stay behind, processes that wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs import live_launches
from gpurun.pairs.live_launches import TOO_FEW, LiveLaunches
from gpurun.pairs.live_pair import PairEnd
from gpurun.pairs.side import SideEnded, SideLate
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.spec import TrialSpec
from gpurun.trials import prestart
from gpurun.trials import trial_launcher as launcher_module
from gpurun.trials.launch_request import LaunchRequest, Ranks
from gpurun.trials.progress import Progress
from gpurun.trials.stop_rules import first_rule
from gpurun.trials.trial_launcher import GRACE_SECONDS, TrialLauncher


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


class Running:
    """Stands in for a sandbox whose script never ends by itself."""

    pid = 1

    def __init__(self, spec: Any) -> None:
        self.killed = False

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def kill(self) -> None:
        self.killed = True

    def poll(self) -> int | None:
        return 137 if self.killed else 0


Supervise = Callable[..., "tuple[FailureKind | None, bool]"]


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervise:
    """Why a launch was given up at the last of these seconds, and whether it was killed."""

    def run(seconds: tuple[float, ...], *, stopped: bool, **more: Any) -> Any:
        killed = False

        def wait(sandbox: Any, run_dir: Path, sampler: Any, supervision: Any) -> Failure | None:
            nonlocal killed
            progress = Progress(run_dir, run_dir / "output.log")
            progress.stopped = stopped
            said: list[Failure | None] = [supervision.look(sandbox, progress, s) for s in seconds]
            killed = sandbox.killed
            return said[-1]

        monkeypatch.setattr(launcher_module, "Sandbox", Running)
        monkeypatch.setattr(launcher_module, "supervise", wait)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        outcome = TrialLauncher(folder, Mode.IN_PLACE).run(request(folder, **more))
        given_up = outcome.failure if outcome.exit_code is None else None
        return _kind(given_up), killed

    return run


def test_a_launch_is_given_up_at_its_limit(supervise: Supervise) -> None:
    assert supervise((4.0,), stopped=False, limit_seconds=5.0) == (None, False)
    assert supervise((4.0, 6.0), stopped=False, limit_seconds=5.0)[0] is FailureKind.OUT_OF_TIME


def test_processes_that_outlive_one_that_has_seen_enough_are_killed(supervise: Supervise) -> None:
    late = 30.0 + GRACE_SECONDS + 1
    assert supervise((30.0, 31.0), stopped=True) == (None, False)
    assert supervise((30.0, late), stopped=True) == (None, True)
    assert supervise((30.0, late), stopped=False) == (None, False)


def test_ranks_that_must_all_finish_have_as_long_as_the_first_one_took(
    supervise: Supervise,
) -> None:
    ranks = Ranks(("--nproc-per-node=2",), to_finish=2)
    assert supervise((30.0, 59.0), stopped=True, ranks=ranks) == (None, False)
    given_up, _ = supervise((30.0, 61.0), stopped=True, ranks=ranks)
    assert given_up is FailureKind.RANK_LEFT_BEHIND


class Waiting:
    """Processes that wait, as far as they are told to start, to stop and to go on."""

    modules = ("torch",)
    pids = (7,)

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, spec: Any, run_dir: Path) -> None:
        self.told.append(f"start {run_dir.name}")

    def stop(self) -> None:
        self.told.append("stop")

    def go_on(self) -> None:
        self.told.append("go on")


RATIO = TurnRatio(0.1, 0.01, 20)


@pytest.mark.parametrize(
    ("end", "pair", "sides"),
    [
        (PairEnd(RATIO, (0, 0), 9.0), "", [None, None]),
        (PairEnd(None, (0, 0), 9.0), TOO_FEW, [None, None]),
        (PairEnd(None, (None, 7), 9.0, SideEnded("two", 7)),
         "two ended with exit code 7 before the pair was measured",
         [FailureKind.PARTNER_ENDED, FailureKind.EXIT_CODE]),
        (PairEnd(None, (None, None), 9.0, SideEnded("one", None)),
         "one gave no sign of life before the pair was measured",
         [FailureKind.HUNG, FailureKind.HUNG]),
        (PairEnd(None, (None, None), 9.0, SideLate("one")),
         "one had not warmed up when the time for it was over",
         [FailureKind.OUT_OF_TIME, FailureKind.OUT_OF_TIME]),
    ],
)  # fmt: skip
def test_a_pair_says_what_befell_it_and_is_measured_while_others_stand_still(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: PairEnd,
    pair: str,
    sides: list[FailureKind | None],
) -> None:
    def run_live(sides: Any, started: Any, ready: Any, *_: object) -> PairEnd:
        assert started() == waiting.pids
        ready()
        return end

    monkeypatch.setattr(live_launches, "run_live_pair", run_live)
    launcher = TrialLauncher(tmp_path, Mode.OVERLAY)
    waiting: Any = Waiting()
    launcher.prestarted = waiting
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    found = LiveLaunches(launcher).run_pair(request(tmp_path, "one"), request(tmp_path, "two"))
    assert waiting.told == ["stop", "go on"]
    assert found.failure == pair
    assert found.first is not None
    assert found.second is not None
    kinds = [_kind(side.failure) for side in (found.first, found.second)]
    # these recorded nothing, so that one which ended well took too few steps
    assert kinds == [kind or FailureKind.TOO_FEW_STEPS for kind in sides]


@pytest.mark.parametrize(
    ("cores", "told"),
    [(16, ["start three", "start four", "stop", "go on"]), (2, ["stop", "go on"])],
)
def test_the_sides_of_the_next_pair_start_beside_those_of_this_one_where_cores_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, told: list[str]
) -> None:
    def run_live(sides: Any, started: Any, ready: Any, *_: object) -> PairEnd:
        started()
        ready()
        return PairEnd(RATIO, (0, 0), 9.0)

    monkeypatch.setattr(live_launches, "run_live_pair", run_live)
    monkeypatch.setattr(prestart, "available_cores", lambda: float(cores))
    monkeypatch.setattr(prestart, "available_memory", lambda: 64 << 30)
    launcher = TrialLauncher(tmp_path, Mode.OVERLAY)
    waiting: Any = Waiting()
    launcher.prestarted = waiting
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    coming = (request(tmp_path, "three"), request(tmp_path, "four"))
    second = replace(request(tmp_path, "two"), following=coming)
    LiveLaunches(launcher).run_pair(request(tmp_path, "one"), second)
    assert waiting.told == told


def test_each_comparison_draws_the_order_of_its_turns_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []

    def run_live(sides: Any, started: Any, ready: Any, draws: Random, *_: object) -> PairEnd:
        drawn.append(draws.random())
        return PairEnd(RATIO, (0, 0), 9.0)

    monkeypatch.setattr(live_launches, "run_live_pair", run_live)
    for run in ("20260101-000000-abcdef", "20260101-000000-fedcba"):
        for name in ("one", "two"):
            (tmp_path / run / name).mkdir(parents=True)
        both = (request(tmp_path / run, name) for name in ("one", "two"))
        LiveLaunches(TrialLauncher(tmp_path / run, Mode.OVERLAY)).run_pair(*both)
    assert drawn[0] != drawn[1]


def _kind(failure: Failure | None) -> FailureKind | None:
    return None if failure is None else failure.kind
