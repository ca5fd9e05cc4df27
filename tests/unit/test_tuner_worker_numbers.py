"""When one launch measures the numbers of loader workers, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.knobs import find
from gpurun.knobs.api import Skip
from gpurun.measure.run_events import read_run
from gpurun.records.events import WorkerTurnEvent
from gpurun.records.facts import Facts, WorkerRate
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.tuning import TrialPurpose
from gpurun.tuner.loader_trials import worker_rates_of, worker_rates_sentence
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts, result
from tests.unit.knob_facts import loader as loading
from tests.unit.recorded_runs import MS, START_NS, loader, row, steps, write_events
from tests.unit.tuner_trials import trial


class Launcher:
    """Takes 50 steps of 8 samples with one worker, then 50 with two in half the time, and again."""

    def __init__(self, folder: Path, *, turns: bool = True) -> None:
        spans = [(1, 20.0), (2, 10.0), (2, 10.0), (1, 20.0)]
        at, ends, events = 0.0, [], []
        for workers, each in spans:
            began = at
            for _ in range(50):
                at += each
                ends.append(at)
            between = (START_NS + round(began * MS), START_NS + round(at * MS))
            events.append(WorkerTurnEvent(workers, *between))
        rows = steps([row(end) for end in ends])
        write_events(folder, [loader(), rows, *(events if turns else [])])
        (self.log,) = read_run(folder).processes
        self.requests: list[TrialRequest] = []
        self.failure: Failure | None = None

    def __call__(self, request: TrialRequest) -> Trial:
        self.requests.append(request)
        return replace(trial(None), log=self.log, failure=self.failure)


def measured(ground: Facts, launch: Launcher) -> tuple[WorkerRate, ...] | Skip:
    return worker_rates_of(find("loader_workers"), ground, PROBE, launch)


def test_one_launch_gives_the_rate_of_each_number_and_its_error(tmp_path: Path) -> None:
    launch = Launcher(tmp_path)
    found = measured(facts(), launch)
    assert isinstance(found, tuple)
    assert [rate.workers for rate in found] == [1, 2]
    assert [rate.samples_per_second for rate in found] == pytest.approx([400.0, 800.0])
    assert worker_rates_sentence(found) == "workers in turns: 1: 400, 2: 800 samples/s (±0.0%)"
    (request,) = launch.requests
    assert request.purpose is TrialPurpose.WORKERS
    assert request.worker_turns is not None
    assert request.settings["loader_workers"] == request.worker_turns.workers[-1] == 32
    assert request.stop.audit_steps == 0


def test_a_model_on_the_same_cores_gets_those_that_the_workers_leave(tmp_path: Path) -> None:
    launch = Launcher(tmp_path)
    measured(facts(), launch)
    (request,) = launch.requests
    assert request.worker_turns is not None
    threads = dict(zip(request.worker_turns.workers, request.worker_turns.threads, strict=True))
    assert threads == {1: 7, 2: 6, 4: 4, 8: 1, 16: 1, 32: 1}
    assert "cpu_threads" not in request.settings, "it changes from turn to turn"


@pytest.mark.parametrize(("step_ms", "whole"), [(2.0, 313), (40.0, 0)])
def test_turns_have_whole_epochs_where_these_are_short(
    tmp_path: Path, step_ms: float, whole: int
) -> None:
    launch = Launcher(tmp_path)
    measured(facts(result=result(step_ms / 2, step_ms)), launch)
    (request,) = launch.requests
    assert request.worker_turns is not None
    assert request.worker_turns.epoch_steps == whole
    assert request.settings["loader_persistent"] is True


def test_what_was_seen_is_used_unless_the_time_was_over_while_more_workers_gained(
    tmp_path: Path,
) -> None:
    """A launch that broke off, out of shared memory say, shows the numbers for which there is."""
    launch = Launcher(tmp_path)
    launch.log = replace(launch.log, worker_turns=launch.log.worker_turns[:2])
    assert measured(facts(), launch) == ()
    launch.failure = Failure(FailureKind.EXCEPTION, "Bus error")
    found = measured(facts(), launch)
    assert isinstance(found, tuple)
    assert [(rate.workers, rate.error) for rate in found] == [(1, None), (2, None)]


def test_a_launch_that_shows_nothing_says_so(tmp_path: Path) -> None:
    found = measured(facts(), Launcher(tmp_path, turns=False))
    assert found == ()
    assert worker_rates_sentence(found) == "workers in turns: no figures"


@pytest.mark.parametrize("changes", [{"objective": "memory"}, loading(iterable=True)])
def test_nothing_is_launched_that_would_tell_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    launch = Launcher(tmp_path)
    assert isinstance(measured(facts(**changes), launch), Skip)
    assert launch.requests == []
