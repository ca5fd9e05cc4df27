"""A reference stays alive beside launches that take turns with it, one after another."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.available_modes import require
from gpurun.measure.resource_use import read_samples
from gpurun.pairs.live_launches import LiveLaunches
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.failure import FailureKind
from gpurun.records.spec import TrialSpec
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome
from gpurun.trials.stop_rules import first_rule
from gpurun.trials.trial_launcher import TrialLauncher
from tests.nvml_stand_in import StandIn

pytestmark = pytest.mark.forked

# Plain gradient descent: torch's optimizers take seconds to import.
TRAINS = """
import sys, time, torch

model = torch.nn.Linear(8, 2)

def step(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    model(torch.randn(4, 8)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None

for _ in range(int(sys.argv[2])):
    step(float(sys.argv[1]))
if sys.argv[3:]:
    raise ValueError(sys.argv[3])
"""


class Launches:
    """Launches of one script that burns so many seconds a step, for so many steps."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        mode, _ = require(folder, in_place=False)
        self.launcher = TrialLauncher(folder / "launches", mode)
        self.live = LiveLaunches(self.launcher)
        self._folder, self._environment, self._count = folder, environment, 0
        (folder / "train.py").write_text(TRAINS)

    def request(self, seconds: float, steps: int = 10**6, *words: str) -> LaunchRequest:
        self._count += 1
        arguments = (str(seconds), str(steps), *words)
        return LaunchRequest(
            name="a launch",
            run_dir=self._folder / "runs" / str(self._count),
            target=Target(TargetKind.SCRIPT, "train.py", arguments),
            cwd=self._folder,
            environment=self._environment,
            trial=TrialSpec(stop=first_rule(20)),
        )

    def beside(
        self, seconds: float, steps: int = 10**6, *words: str
    ) -> tuple[Outcome, TurnRatio | None]:
        return self.live.run_beside(self.request(seconds, steps, *words))

    def close(self) -> None:
        self.live.end_reference()
        self.launcher.close()


@pytest.fixture
def launches(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Launches]:
    made = Launches(tmp_path, clean_environment)
    yield made
    made.close()


def times_as_long(outcome: Outcome, ratio: TurnRatio | None) -> float:
    """Its step time over the reference's."""
    assert outcome.failure is None, outcome.failure
    assert ratio is not None
    return math.exp(ratio.log)


@pytest.mark.slow  # quick twin: the other tests of this file
def test_launches_one_after_another_are_compared_with_the_same_live_one(
    launches: Launches,
) -> None:
    assert launches.live.start_reference(launches.request(0.004)) == ""
    slower, as_fast = launches.beside(0.04), launches.beside(0.004)
    assert times_as_long(*slower) > 1.5 * times_as_long(*as_fast)
    assert slower[0].status == as_fast[0].status == "stopped"
    assert slower[0].result.measured_steps > 0, "it has figures of its own as well"
    assert launches.live.has_reference
    launches.live.end_reference()
    alone = launches.beside(0.004)
    assert alone[1] is None, "it runs alone now"
    assert [one.in_turns for one, _ in (slower, as_fast, alone)] == [True, True, False]


@pytest.mark.slow  # quick twin: the reference that ends, below
def test_a_launch_that_fails_leaves_the_reference_for_the_next(launches: Launches) -> None:
    assert launches.live.start_reference(launches.request(0.004)) == ""
    failed, _ = launches.beside(0.001, 3, "no such class")
    assert failed.failure is not None
    assert "no such class" in failed.failure.text
    _, ratio = launches.beside(0.004)
    assert ratio is not None


@pytest.mark.forked(False)  # a fork is over before the first sample of the GPU
def test_a_launch_without_turns_takes_the_reference_for_no_stranger_on_its_gpu(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = StandIn()
    gpu.pids = []
    monkeypatch.setitem(sys.modules, "pynvml", gpu)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert launches.live.start_reference(launches.request(0.004)) == ""
    gpu.pids = [4711]  # the reference, with its process id on the host of the container
    request = launches.request(0.004)
    launches.launcher.run(request)
    assert {sample.foreign_processes for sample in read_samples(request.run_dir).device} == {0}


@pytest.mark.parametrize(
    ("seconds", "limit", "lost"),
    [(0.004, 60.0, False), pytest.param(60.0, 1.0, True, marks=pytest.mark.slow)],
)
def test_beside_a_gpu_it_warms_up_while_the_first_launch_starts(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, seconds: float, limit: float, lost: bool
) -> None:
    gpu = StandIn()
    gpu.pids = []
    monkeypatch.setitem(sys.modules, "pynvml", gpu)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    request = replace(launches.request(seconds), limit_seconds=limit)
    assert launches.live.start_reference(request) == ""
    outcome, ratio = launches.beside(0.004)
    assert (outcome.status, outcome.failure) == ("stopped", None)
    assert outcome.result.measured_steps > 0, "it has figures of its own in any case"
    assert (ratio is None) is lost
    assert launches.live.has_reference is not lost


def test_a_reference_that_ends_costs_a_launch_its_ratio_and_nothing_else(
    launches: Launches,
) -> None:
    assert launches.live.start_reference(launches.request(0.004, 30)) == ""
    outcome, ratio = launches.beside(0.004)
    assert outcome.failure is None
    assert (outcome.status, ratio) == ("stopped", None)
    assert not launches.live.has_reference


@pytest.mark.slow  # quick twin: the reference that ends, above
def test_a_script_that_fails_is_no_reference(launches: Launches) -> None:
    why = launches.live.start_reference(launches.request(0.001, 2, "no such class"))
    assert "ended with exit code 1" in why
    assert not launches.live.has_reference


def test_neither_a_reference_nor_a_pair_is_waited_for_beyond_its_limit(launches: Launches) -> None:
    def never_warm() -> LaunchRequest:
        return replace(launches.request(60.0), limit_seconds=1.0)

    began = time.monotonic()
    why = launches.live.start_reference(never_warm())
    assert why == "the reference had not warmed up when the time for it was over"
    assert not launches.live.has_reference
    pair = launches.live.run_pair(never_warm(), never_warm())
    assert time.monotonic() - began < 20.0, "its patience is 120 s"
    assert pair.first is not None
    assert pair.first.failure is not None
    assert pair.first.failure.kind is FailureKind.OUT_OF_TIME


@pytest.mark.slow  # quick twin: the launcher that is killed, of test_live_pair.py
@pytest.mark.forked(False)  # its processes are to be below this one
def test_nothing_of_a_reference_is_left_when_it_is_ended(launches: Launches) -> None:
    before = set(psutil.Process().children(recursive=True))
    launches.live.start_reference(launches.request(0.004))
    of_reference = set(psutil.Process().children(recursive=True)) - before
    launches.live.end_reference()
    _, alive = psutil.wait_procs(of_reference, timeout=30)
    assert of_reference
    assert not alive
