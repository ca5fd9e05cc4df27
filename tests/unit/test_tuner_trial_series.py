"""What is read off a trial while it runs and after it ended, without launching one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.isolation.isolation_mode import Mode
from gpurun.launch.exit_code import OUT_OF_MEMORY, last_error_line
from gpurun.measure.run_events import ProcessLog, read_run
from gpurun.pairs.engine import PairOutcome
from gpurun.records.events import CompileEvent, StopEvent
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.spec import TrialSpec
from gpurun.records.tuning import TrialPurpose
from gpurun.same.launch_audit import LaunchAudit
from gpurun.trials import outcome
from gpurun.trials.failure_cause import recompiled, while_compiling
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome, conclude
from gpurun.trials.progress import Progress
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import TrialRequest
from tests.unit.recorded_runs import MS, START_NS, UNIX_NS, steady, write_events
from tests.unit.test_same_trainings import audit

SCRIPT = Target(TargetKind.SCRIPT, "train.py")


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("epoch 1\nTraceback ...\nValueError: bad\n", "ValueError: bad"),
        ("torch.OutOfMemoryError: CUDA out of memory.\nsee the docs\n", "torch.OutOfMemoryError"),
        ("\x1b[31mKeyError: 'x'\x1b[0m\r\n", "KeyError: 'x'"),
        ("usage: train.py\ntrain.py: error: no data\n\n", "train.py: error: no data"),
        ("", ""),
    ],
)
def test_the_last_lines_name_the_exception(tmp_path: Path, printed: str, words: str) -> None:
    log = tmp_path / "output.log"
    log.write_text(printed)
    assert last_error_line(log).startswith(words)
    assert bool(last_error_line(log)) == bool(words)


def test_a_trial_that_printed_nowhere_has_no_last_lines(tmp_path: Path) -> None:
    assert last_error_line(tmp_path / "missing.log") == ""


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes",
        "OSError: [Errno 12] Cannot allocate memory",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8 TiB",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
    ],
)
def test_out_of_memory_is_recognised_in_its_dialects(line: str) -> None:
    assert OUT_OF_MEMORY.search(line)


def test_progress_counts_steps_and_takes_any_record_or_print_for_life(tmp_path: Path) -> None:
    log, events = tmp_path / "output.log", tmp_path / "events-7.jsonl"
    progress = Progress(tmp_path, log)
    assert not progress.advanced()
    log.write_text("downloading 1 %\n")
    assert progress.advanced()
    assert not progress.advanced()
    line = json.dumps({"event": "steps", "clock": "optimizer", "rows": [[0], [1]]}) + "\n"
    line = line.replace(": ", ":").replace(", ", ",")
    with events.open("a") as file:
        file.write(line + line[:20])
    assert progress.advanced()
    assert progress.steps == 2
    assert not progress.advanced()  # half a line is not a record yet
    with events.open("a") as file:
        file.write(line[20:] + '{"event":"stop","steps":4}\n')
    assert progress.advanced()
    assert (progress.steps, progress.stopped) == (4, True)


KNOB = '''
from gpurun.knobs.api import Effect, Knob

class Mine(Knob):
    """A knob that goes wrong in the launcher."""

    name = "mine"
    effect = Effect.PIPELINE

    def candidates(self, facts):
        return [1]

    def apply(self, value, hooks):
        hooks.applied("mine")

    def {method}:
        {body}
'''


@pytest.mark.parametrize(
    ("method", "body", "reason"),
    [
        ("environment(self, value)", "raise OSError('no NUMA')", "environment raised OSError: no"),
        ("environment(self, value)", "return {'THREADS': 4}", "environment raised TypeError: 4 is"),
        ("arguments(self, value, argv)", "return argv[argv.index('-j')]", "arguments raised Value"),
    ],
)
def test_settings_that_cannot_be_prepared_are_a_skipped_trial_and_launch_nothing(
    tmp_path: Path, method: str, body: str, reason: str
) -> None:
    knob = tmp_path / f"{tmp_path.name}.py"  # modules stay loaded: each has its own name
    knob.write_text(KNOB.format(method=method, body=body))
    target = Target(TargetKind.SCRIPT, str(tmp_path / "missing.py"))
    options = Options(target, optimize=True, knob_paths=(str(knob),))
    series = TrialSeries(options, tmp_path / "run", Mode.IN_PLACE, {}, lambda steps, of: None)
    trial = series.run(TrialRequest(TrialPurpose.SCREEN, {"mine": 1}, PROBE))
    assert trial.throughput is None
    assert trial.record.status == "skipped"
    assert trial.record.reason.startswith(f"mine: {reason}")
    assert series.trials == [trial.record]
    assert not list(tmp_path.glob("run/trials/01/output.log"))


def test_the_next_pair_is_expected_with_its_sides_reversed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it is started with the settings of its own side."""
    (tmp_path / "train.py").write_text("print()")
    options = Options(Target(TargetKind.SCRIPT, str(tmp_path / "train.py")), optimize=True)
    series = TrialSeries(options, tmp_path / "run", Mode.IN_PLACE, {}, lambda steps, of: None)
    launched: list[LaunchRequest] = []

    def run_pair(first: LaunchRequest, second: LaunchRequest) -> PairOutcome[Outcome]:
        launched.extend((first, second, *second.following))
        return PairOutcome(None, None, None, "asked for")

    monkeypatch.setattr(series.live, "run_pair", run_pair)
    settings = ({}, {"cpu_threads": 1})
    series.run_pair(
        (
            TrialRequest(TrialPurpose.PAIR_BASELINE, settings[0], PROBE),
            TrialRequest(TrialPurpose.PAIR_CANDIDATE, settings[1], PROBE),
        )
    )
    names = [tuple(setting.knob for setting in one.settings) for one in launched]
    assert names == [(), ("cpu_threads",), ("cpu_threads",), ()]


def compiled(folder: Path, *times: float, measured: float | None = None) -> ProcessLog:
    """A process that began and ended to compile in turn, `times` seconds after its start.

    `measured`: its steps were from then on, until second 60.
    """
    phases = ("begin", "end") * len(times)
    clock = [START_NS + int(at * 1000) * MS for at in (*times, measured or 0.0, 60.0)]
    events = [CompileEvent(*event) for event in zip(phases, clock[: len(times)], strict=False)]
    stop = [] if measured is None else [StopEvent("enough", 40, clock[-2], clock[-1])]
    write_events(folder, [*events, steady(40), *stop])
    return read_run(folder).processes[0]


GIVEN_UP = "hangs: given up after 60 s without a sign of life"


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ((20.0,), "compiling did not end within 80 s"),
        ((), GIVEN_UP),
        ((1.0, 4.0), GIVEN_UP),
        ((1.0, 40.0, 41.0, 90.0), f"{GIVEN_UP}: 88 s of it went into 2 compilations"),
        ((1.0, 40.0, 41.0, 90.0, 99.0), f"{GIVEN_UP}: 89 s of it went into 3 compilations"),
    ],
    ids=["never ends", "compiles nothing", "hangs later", "compiles again", "and again"],
)
def test_a_trial_that_was_given_up_names_the_compiler_where_it_took_the_time(
    tmp_path: Path, times: tuple[float, ...], reason: str
) -> None:
    now = START_NS + 100_000 * MS
    hung = Failure(FailureKind.HUNG, GIVEN_UP)
    found = while_compiling([compiled(tmp_path, *times)], now, hung)
    kind = FailureKind.HUNG if reason == GIVEN_UP else FailureKind.COMPILING
    assert (found.kind, found.text) == (kind, reason)


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize(
    ("times", "reason"), [((20.0,), "compiling did not end within 80 s"), ((1.0, 4.0), GIVEN_UP)]
)
def test_a_clock_that_is_set_meanwhile_makes_no_compilation_longer_or_shorter(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: tuple[float, ...],
    reason: str,
    hours: int,
) -> None:
    compiled(tmp_path, *times)
    seconds = SimpleNamespace(
        perf_counter_ns=lambda: START_NS + 100_000 * MS,
        time_ns=lambda: UNIX_NS + (100 + 3600 * hours) * 1000 * MS,
    )
    monkeypatch.setattr(outcome, "time", seconds)
    request = LaunchRequest("a launch", tmp_path, SCRIPT, tmp_path, {}, TrialSpec(PROBE))
    ended = conclude(request, None, 100.0, Failure(FailureKind.HUNG, GIVEN_UP))
    assert ended.failure is not None
    assert ended.failure.text == reason


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ((1.0, 20.0), ""),
        ((1.0, 20.0, 41.0, 41.2), ""),
        ((1.0, 20.0, 41.0, 45.0), "torch compiled once more while it was measured, for 4.0 s"),
        ((41.0, 45.0, 50.0, 53.5), "torch compiled 2 times more while it was measured, for 7.5 s"),
    ],
)
def test_what_was_compiled_while_a_trial_was_measured_is_told_where_it_weighs(
    tmp_path: Path, times: tuple[float, ...], told: str
) -> None:
    assert recompiled(compiled(tmp_path, *times, measured=40.0)) == told


def test_samples_are_loaded_again_once_for_all_trials_that_load_them_alike(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    options = Options(Target(TargetKind.SCRIPT, str(tmp_path / "train.py")), optimize=True)
    series = TrialSeries(options, tmp_path / "run", Mode.IN_PLACE, {}, lambda steps, of: None)

    def request(settings: dict[str, Any], **how: Any) -> TrialRequest:
        return TrialRequest(TrialPurpose.SCREEN, settings, replace(PROBE, audit_steps=1), **how)

    def asked(settings: dict[str, Any], **how: Any) -> bool:
        trial = series._request(1, request(settings, **how)).trial
        return trial is not None and trial.load_again

    assert asked({})
    assert not asked({}, seed_offset=1), "samples of one seed are compared"
    ended = LaunchAudit(0, (), ())
    series._with_samples(ended, request({}))
    assert asked({}), "the first one ended before it loaded them"
    seen = replace(ended, audits=(audit(1),), again={0: ((1, 2),)})
    series._with_samples(seen, request({}))
    assert not asked({})
    assert not asked({"tf32": True})
    assert asked({"loader_workers": 2})
    assert series._with_samples(ended, request({"tf32": True})).again == seen.again
    assert series._with_samples(ended, request({"loader_workers": 2})).again == {}
