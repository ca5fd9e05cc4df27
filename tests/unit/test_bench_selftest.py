"""The selftest of the gate: its three comparisons, and what it makes of their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.compare import compare_sides as comparing
from gpurun.bench.compare.compare_sides import CompareRequest
from gpurun.bench.gate_selftest import selftest
from gpurun.bench.trees.prepared_sides import Side
from gpurun.errors import GpurunError
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord
from gpurun.records.bench.comparison import Selftest
from gpurun.records.bench.metrics import Metric
from gpurun.records.codec import from_json, to_json
from gpurun.records.events import PlantedEvent
from gpurun.records.spec import StopRule
from gpurun.report.bench_text import selftest_lines
from gpurun.trials.signal_guard import SignalGuard
from tests.repositories import commit, git, new_repository
from tests.unit.bench_launches import BENCHMARK, launch

STEP = 0.008
"""Seconds of a step that nothing slows down."""


@dataclass
class Machine:
    """What launches come to here. `felt`: the share of a delay by which a step gets longer;
    `recorded`: the share of it that is on record; `noise`: the factors of the rates in turn;
    `biased`: the factor by which steps of the current side are longer; `interrupts`: whether a
    signal comes in a launch with this delay."""

    felt: float = 1.0
    recorded: float = 1.0
    noise: tuple[float, ...] = (1.0, 1.001, 0.999)
    biased: float = 1.0
    error: str = ""
    interrupts: Callable[[float], bool] = lambda asked: False


class OnMachine(Launcher):
    """Launches that come to what the planted delay of their side makes of them."""

    machine: ClassVar[Machine] = Machine()
    count = 0

    def run(self, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        machine, asked = self.machine, start.planted_seconds
        OnMachine.count += 1
        if machine.interrupts(asked):
            raise KeyboardInterrupt
        step = (STEP + machine.felt * asked) * machine.noise[OnMachine.count % len(machine.noise)]
        step *= machine.biased if start.name == "current" else 1.0
        made = launch(start.name, 8 / step, error=machine.error, measured_seconds=50 * step)
        event = PlantedEvent(asked, 60, 60 * machine.recorded * asked)
        return replace(made, start=start, planted=(event,) if asked else ())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = new_repository(tmp_path / "project")
    commit(made, {"train.py": "x = 1\n", ".gitignore": ".gpurun/\n"})
    (made / ".gpurun").mkdir()
    return made


@pytest.fixture
def tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Selftest]:
    """A selftest on a machine; what it kept and told stands in `tried.kept` and `tried.told`."""

    def run(machine: Machine | None = None, **changes: object) -> Selftest:
        monkeypatch.setattr(OnMachine, "machine", machine or Machine())
        monkeypatch.setattr(OnMachine, "count", 0)
        monkeypatch.setattr(comparing, "Launcher", OnMachine)
        benchmark = replace(BENCHMARK, name="train", folder=folder, **changes)  # type: ignore[arg-type]
        asked = CompareRequest(
            "HEAD", folder / ".gpurun", GatePlan(), float("inf"), True, KEPT.append, TOLD.append
        )
        KEPT.clear()
        TOLD.clear()
        found = selftest(benchmark, asked, SignalGuard())
        assert from_json(Selftest, to_json(found)) == found
        assert len(git(folder, "worktree", "list").splitlines()) == 1
        runs = folder / ".gpurun/runs"
        assert not runs.exists() or [run for run in runs.iterdir() if not any(run.iterdir())] == []
        return found

    return run


KEPT: list[BenchmarkRecord] = []
TOLD: list[str] = []


def answers(found: Selftest) -> list[tuple[str, str | None, bool | None]]:
    return [(part.part, part.answer, part.right) for part in found.parts]


def test_a_sound_gate_is_red_for_the_slower_side_alone(
    folder: Path, tried: Callable[..., Selftest]
) -> None:
    (folder / "train.py").write_text("x = 2\n")
    found = tried()
    assert answers(found) == [
        ("unchanged", "green", True), ("slower", "red", True), ("faster", "green", True),
    ]  # fmt: skip
    assert (found.verdict, found.exit_code, found.dirty) == ("pass", 0, True)
    assert "uncommitted changes are left out: the selftest works on the commit" in TOLD
    assert (folder / "train.py").read_text() == "x = 2\n"
    assert [part.planted_slowdown for part in found.parts] == pytest.approx([0.0, 0.1, -1 / 9])
    for part in found.parts:
        assert part.comparison.slowdown == pytest.approx(part.planted_slowdown, abs=0.01)
    assert {record.purpose for record in KEPT} == {BenchmarkPurpose.SELFTEST}
    planted = [record.launches[0].planted_step_seconds for record in KEPT]
    assert [planted[3], planted[4]] == pytest.approx([STEP / 9, STEP / 9], rel=0.01)
    assert planted[:3] + planted[5:] == [None] * 4
    assert selftest_lines(found)[-1].startswith("PASS selftest of train: the gate (5.0 % allowed)")


@pytest.mark.parametrize(
    ("machine", "rights", "wrong"),
    [
        (Machine(felt=0.0), [True, False, True], "the training waits anyway"),
        (Machine(recorded=0.5), [True, False, False], "launches of the current side slept 0.44"),
        (Machine(biased=1.1), [False, True, None], "the gate went red although nothing differs"),
    ],
)
def test_a_gate_that_proves_nothing_is_wrong_and_its_row_says_why(
    tried: Callable[..., Selftest], machine: Machine, rights: list[bool | None], wrong: str
) -> None:
    found = tried(machine)
    assert [part.right for part in found.parts][:2] == rights[:2]
    assert rights[2] is None or found.parts[2].right == rights[2]
    assert (found.verdict, found.exit_code) == ("wrong", 5)
    assert any(wrong in line for line in selftest_lines(found))


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


def test_a_setup_that_fails_ends_it_with_its_reason(tried: Callable[..., Selftest]) -> None:
    found = tried(setup="echo no such wheel; exit 3")
    assert (found.verdict, found.exit_code, found.parts) == ("failed", 5, ())
    assert "no such wheel" in (found.error or "")


@pytest.mark.parametrize(
    ("interrupts", "parts"), [(lambda asked: True, 1), (lambda asked: asked > 0, 2)]
)
def test_an_interruption_keeps_what_was_found(
    tried: Callable[..., Selftest], interrupts: Callable[[float], bool], parts: int
) -> None:
    found = tried(Machine(interrupts=interrupts))
    assert (found.verdict, found.exit_code, len(found.parts)) == ("interrupted", 130, parts)
    assert [part.right for part in found.parts] == [True, None][-parts:]


@pytest.mark.parametrize("thresholds", [{Metric.PEAK_MEMORY: 0.01}, {Metric.THROUGHPUT: 0.5}])
def test_what_cannot_be_planted_is_refused_before_anything_is_launched(
    tried: Callable[..., Selftest], thresholds: dict[Metric, float]
) -> None:
    with pytest.raises(GpurunError, match="needs a gated speed with a threshold up to 40%"):
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
