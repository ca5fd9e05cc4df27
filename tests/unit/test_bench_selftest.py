"""The selftest of the gate: its three comparisons, and what it makes of their answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.compare import compare_commits
from gpurun.bench.compare.compare_commits import CompareRequest
from gpurun.bench.selftest.selftest_runner import selftest
from gpurun.bench.trees.prepared_sides import Side
from gpurun.errors import GpurunError
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord
from gpurun.records.bench.metrics import Metric
from gpurun.records.bench.selftest import Selftest
from gpurun.records.codec import from_json, to_json
from gpurun.records.events import OriginsEvent, PlantedEvent
from gpurun.records.spec import StopRule
from gpurun.report.selftest_text import selftest_lines
from gpurun.trials.signal_guard import SignalGuard
from tests.repositories import commit, git, new_repository
from tests.unit.bench_launches import BENCHMARK, launch

STEP = 0.008
"""Seconds of a step that nothing slows down."""


@dataclass
class Machine:
    """What launches come to here. `felt`: the share of a delay by which a step gets longer;
    `recorded`: the share of it that is on record; `noise`: the factors of the rates in turn."""

    felt: float = 1.0
    recorded: float = 1.0
    noise: tuple[float, ...] = (1.0, 1.001, 0.999)
    error: str = ""


class OnMachine(Launcher):
    """Launches that come to what the planted delay of their side, or of its tree, makes of them."""

    machine: ClassVar[Machine] = Machine()
    count = 0

    def run(self, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        machine, module = self.machine, start.folder / "net.py"
        asked = {"runtime": start.planted_seconds} if start.planted_seconds else {}
        _, planted, rest = module.read_text().partition(".plant(")
        if planted:
            asked[os.path.realpath(module)] = float(rest.split(",")[0])
        OnMachine.count += 1
        noise = machine.noise[OnMachine.count % len(machine.noise)]
        step = (STEP + machine.felt * sum(asked.values())) * noise
        made = launch(start.name, 8 / step, error=machine.error, measured_seconds=50 * step)
        files = (("net", str(module)), ("__main__", str(start.folder / "train.py")))
        events = tuple(
            PlantedEvent(where, seconds, 60, 60 * machine.recorded * seconds)
            for where, seconds in asked.items()
        )
        origins = (OriginsEvent(files, (), (), (), complete=True),)
        return replace(made, start=start, origins=origins, planted=events)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = new_repository(tmp_path / "project")
    commit(made, {"train.py": "import net\n", "net.py": "x = 1\n", ".gitignore": ".gpurun/\n"})
    (made / ".gpurun").mkdir()
    return made


@pytest.fixture
def tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Selftest]:
    """A selftest on a machine; what it kept and told stands in `tried.kept` and `tried.told`."""

    def run(machine: Machine | None = None, **changes: object) -> Selftest:
        monkeypatch.setattr(OnMachine, "machine", machine or Machine())
        monkeypatch.setattr(OnMachine, "count", 0)
        monkeypatch.setattr(compare_commits, "Launcher", OnMachine)
        benchmark = replace(BENCHMARK, name="train", folder=folder, **changes)  # type: ignore[arg-type]
        asked = CompareRequest(
            "HEAD", folder / ".gpurun", GatePlan(), float("inf"), True, KEPT.append, TOLD.append
        )
        KEPT.clear()
        TOLD.clear()
        found = selftest(benchmark, asked, SignalGuard())
        assert from_json(Selftest, to_json(found)) == found
        assert len(git(folder, "worktree", "list").splitlines()) == 1
        return found

    return run


KEPT: list[BenchmarkRecord] = []
TOLD: list[str] = []


def answers(found: Selftest) -> list[tuple[str, str | None, bool | None]]:
    return [(part.part, part.answer, part.right) for part in found.parts]


def test_a_sound_gate_is_green_on_equal_trees_and_red_for_both_slow_downs(
    folder: Path, tried: Callable[..., Selftest]
) -> None:
    (folder / "net.py").write_text("x = 2\n")
    found = tried()
    assert answers(found) == [
        ("unchanged", "green", True), ("runtime", "red", True), ("module", "red", True),
    ]  # fmt: skip
    assert (found.verdict, found.exit_code, found.dirty) == ("pass", 0, True)
    assert "uncommitted changes are left out: the selftest works on the commit" in TOLD
    assert (folder / "net.py").read_text() == "x = 2\n"
    runs = list((folder / ".gpurun/runs").iterdir())
    assert len(runs) == 3, "a folder for each comparison, and no empty one"
    assert found.parts[2].file == "net.py"
    for part in found.parts[1:]:
        assert part.planted_slowdown == 0.1
        assert part.step_seconds == pytest.approx(STEP / 9, rel=0.01)
        assert part.planted_step_seconds == pytest.approx((STEP / 9, STEP / 9), rel=0.01)
        assert part.comparison.slowdown == pytest.approx(0.1, abs=0.01)
    assert {record.purpose for record in KEPT} == {BenchmarkPurpose.SELFTEST}
    planted = [record.launches[0].planted_step_seconds for record in KEPT]
    assert [seconds is not None for seconds in planted] == [False] * 3 + [True] + [False, True]
    assert selftest_lines(found)[-1].startswith("PASS selftest of train: the gate (5.0 % allowed)")


@pytest.mark.parametrize(
    ("machine", "wrong"),
    [
        (Machine(felt=0.0), "the training waits for something else"),
        (Machine(recorded=0.5), "launch 1 of the current side records a delay of 0.44"),
    ],
)
def test_a_slow_down_that_is_not_felt_or_not_there_proves_nothing(
    tried: Callable[..., Selftest], machine: Machine, wrong: str
) -> None:
    found = tried(machine)
    assert [part.right for part in found.parts] == [True, False, False]
    assert (found.verdict, found.exit_code) == ("wrong", 5)
    assert wrong in (found.parts[1].wrong or "")
    assert any(wrong in line for line in selftest_lines(found))


def test_a_gate_that_is_red_on_equal_trees_is_wrong_and_no_regression(
    tried: Callable[..., Selftest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By turns of the sides: the current one is slower in every pair."""
    original = OnMachine.run

    def biased(self: OnMachine, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        made = original(self, start, rule, first=first)
        if start.name == "baseline":
            return made
        slower = replace(made.result, samples_per_second=made.result.samples_per_second * 0.9)
        return replace(made, result=slower)

    monkeypatch.setattr(OnMachine, "run", biased)
    found = tried()
    assert answers(found)[0] == ("unchanged", "red", False)
    assert (found.verdict, found.exit_code) == ("wrong", 5)


def test_noise_that_hides_everything_leaves_it_undecided(tried: Callable[..., Selftest]) -> None:
    found = tried(Machine(noise=(1.0, 1.4, 0.7, 1.9, 0.6)))
    assert (found.verdict, found.exit_code) == ("inconclusive", 3)
    assert found.parts[0].right is None
    assert "undecided within 16 pairs: nothing differs" in selftest_lines(found)[-2]


def test_a_script_that_crashes_ends_it_with_its_reason(tried: Callable[..., Selftest]) -> None:
    found = tried(Machine(error="ValueError: no"))
    assert (found.verdict, found.exit_code, len(found.parts)) == ("failed", 5, 1)
    assert "failed on both sides: ValueError: no" in (found.error or "")
    assert found.parts[0].right is None


@pytest.mark.parametrize(
    ("thresholds", "what"),
    [
        ({Metric.PEAK_MEMORY: 0.01}, "gates no speed"),
        ({Metric.THROUGHPUT: 0.5}, "twice the threshold of 50% leaves too little"),
    ],
)
def test_what_cannot_be_planted_is_refused_before_anything_is_launched(
    tried: Callable[..., Selftest], thresholds: dict[Metric, float], what: str
) -> None:
    with pytest.raises(GpurunError, match=what):
        tried(thresholds=thresholds, metrics=tuple(thresholds))


def test_outside_of_git_it_says_so(
    tried: Callable[..., Selftest], folder: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "train.py").touch()
    asked = CompareRequest(
        "HEAD", tmp_path, GatePlan(), float("inf"), True, KEPT.append, TOLD.append
    )
    with pytest.raises(GpurunError, match="is in no git repository"):
        selftest(replace(BENCHMARK, folder=bare), asked, SignalGuard())
