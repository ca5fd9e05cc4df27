"""Records for the tests of what is shown: one full example of each, to be varied by field."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path
from typing import Any

from gpurun.records.codec import to_json
from gpurun.records.result import (
    DeviceUse,
    HostUse,
    KnobOutcome,
    RunResult,
    StepSplit,
    StepTime,
)
from gpurun.records.tuning import (
    Candidate,
    GuardVerdict,
    LadderRow,
    LargerBatch,
    Proof,
    TrialPurpose,
    TrialRecord,
    TuningReport,
)
from gpurun.report.ladder import closing_lines, ladder_grid, not_kept
from gpurun.report.terminal_output import plain

GIB = 1024**3
REPOSITORY = Path(__file__).parents[2]
BEST = {"loader_workers": 8, "host_allocator": "keep", "tf32": True}


def run_result(**changes: Any) -> RunResult:
    """A finished run on one GPU with every figure measured."""
    device = DeviceUse(
        "NVIDIA H200", "GPU-1", 43.0, "gpm_sm_activity", 43.0, 3.0, 16.0, 80.0,
        GIB, 139 * GIB, 213.0, 12300.0, 44.0, 1980.0, (), 0, 10.0,
    )  # fmt: skip
    full = RunResult(
        status="completed",
        exit_code=0,
        clock="optimizer",
        steps=200,
        warmup_steps=12,
        measured_steps=188,
        measured_seconds=4.87,
        samples=6016,
        samples_per_second=1234.5,
        tokens_per_second=None,
        batch_size=32.0,
        step_time_ms=StepTime(25.9, 25.1, 30.2, 41.03),
        epoch_seconds=48.6,
        split=StepSplit(10.6, 0.8, 5.2, 6.4, 1.6, 1.3),
        peak_memory_bytes=int(1.2 * GIB),
        peak_reserved_bytes=int(1.5 * GIB),
        allocator_retries=0,
        host=HostUse(184.0, 16.0, int(2.3 * GIB), 5),
        devices=(device,),
        gpu_utilization_percent=43.0,
        gpu_utilization_source="gpm_sm_activity",
        energy_joules=12300.0,
        joules_per_sample=0.173,
        seconds_to_first_step=2.0,
        wall_seconds=52.1,
        final_loss=1.2,
        knobs=(KnobOutcome("tf32", "applied", ""),),
    )
    return dataclasses.replace(full, **changes)


def unmeasured_result(**changes: Any) -> RunResult:
    """A run of which nothing could be measured but that it ended."""
    nothing: dict[str, Any] = dict.fromkeys(
        (
            "clock", "measured_seconds", "samples", "samples_per_second", "batch_size",
            "step_time_ms", "epoch_seconds", "split", "peak_memory_bytes", "peak_reserved_bytes",
            "allocator_retries", "host", "gpu_utilization_percent", "gpu_utilization_source",
            "energy_joules", "joules_per_sample", "seconds_to_first_step", "final_loss",
        )
    )  # fmt: skip
    bare = {"steps": 0, "warmup_steps": 0, "measured_steps": 0, "devices": (), "knobs": ()}
    return run_result(**{**nothing, **bare, **changes})


def trial(number: int, knobs: dict[str, Any], rate: float | None, **changes: Any) -> TrialRecord:
    """One trial; a rate of None is one that yielded nothing."""
    times = StepTime(32e3 / rate, 31e3 / rate, 40e3 / rate, 50e3 / rate) if rate else None
    record = TrialRecord(
        number=number,
        purpose=TrialPurpose.PROBE if number == 1 else TrialPurpose.SCREEN,
        knobs=knobs,
        status="stopped" if rate else "failed",
        samples_per_second=rate,
        step_time_ms=times,
        peak_memory_bytes=GIB if rate else None,
        final_loss=1.0 if rate else None,
        seconds=6.4,
        reason="",
        run_dir="runs/1",
    )
    return dataclasses.replace(record, **changes)


TRIALS = (
    trial(1, {}, 800.0),
    trial(2, {"loader_workers": 8}, 1640.0, reason="kept"),
    trial(3, {"loader_workers": 8, "compile": "default"}, None, reason="no C++\n\x1b[31mcompiler"),
)

LADDER = (
    LadderRow("as it is", {}, "pipeline", True, 800.0, peak_memory_bytes=GIB),
    LadderRow(
        "transfer", {"loader_workers": 8, "host_allocator": "keep"}, "pipeline", True, 1640.0,
        2.05, (1.78, 2.36), 2.05, (1.78, 2.36), GIB, loss_deviation=0.0, merged=("data",),
    ),
    LadderRow(
        "precision", {"tf32": True}, "numerics", True, 1848.0, 2.31, (2.25, 2.37),
        1.127, (0.98, 1.3), GIB, loss_deviation=0.004,
    ),
    LadderRow(
        "kernels", {"channels_last": True}, "numerics", False, speedup=2.1, step_speedup=0.92,
        reason="slower",
    ),
    LadderRow("compile", {"compile": "default"}, "numerics", False, reason="no compiler"),
    LadderRow(
        "batch", {"batch_size": {"batch_size": 256, "via": "--batch-size"}}, "training", False,
        10000.0, 12.5, (10.9, 14.3), 5.4, (4.7, 6.2), 8 * GIB,
        reason="changes training: apply with --allow pipeline,numerics,training",
    ),
)  # fmt: skip

PROOF = Proof(2.31, (2.25, 2.37), 0.0004, True, True, ((800, 1850), (798, 1842), (803, 1851)))

LARGER_BATCH = LargerBatch(
    knobs={**BEST, **LADDER[-1].changes},
    samples_per_second=10000.0,
    step_time_ms=None,
    peak_memory_bytes=8 * GIB,
    gpu_utilization_percent=None,
    batch_size=256,
    speedup=12.5,
    proof=None,
    side_effects=("learning rate 0.1 → 0.8 (linear rule for SGD)",),
)


def tuning_report(**changes: Any) -> TuningReport:
    """A tuning that found and proved something."""
    full = TuningReport(
        verdict="faster",
        speedup=2.31,
        speedup_confidence_interval=(2.25, 2.37),
        p_value=0.0004,
        statistically_significant=True,
        baseline=Candidate({}, 800.0, None, GIB, None),
        chosen=Candidate(dict(BEST), 1848.0, None, GIB, None),
        larger_batch=LARGER_BATCH,
        ladder=LADDER,
        trials=TRIALS,
        tuning_seconds=101.4,
        proof=PROOF,
        guard=GuardVerdict(True, 0.004, 0.011, ()),
        rejections=(),
        isolation="overlay",
        decisions=("the step waits 41 % for data",),
        fingerprint={},
        command=("train.py", "--name", "a b"),
        invocation=("gpurun", "--tuned", "--nproc-per-node=2", "train.py", "--name", "a b"),
    )
    return dataclasses.replace(full, **changes)


def barren_report(verdict: str, **changes: Any) -> TuningReport:
    """A tuning that ended without any figure."""
    nothing: dict[str, Any] = dict.fromkeys(
        (
            "speedup", "speedup_confidence_interval", "p_value", "baseline", "chosen",
            "larger_batch", "proof", "guard",
        )
    )  # fmt: skip
    rest = {"statistically_significant": False, "ladder": (), "trials": ()}
    rest |= {"rejections": (), "isolation": ""}
    return tuning_report(**{**nothing, **rest, "verdict": verdict, **changes})


def in_child(
    code: str, folder: Path, record: Any, columns: int | None = None, **environment: str
) -> tuple[str, str]:
    """Run `code` in a python of its own and return its stdout and stderr.

    `record` lies as JSON in the file named by its first argument. With `columns`, stderr is a
    terminal of that width; else a pipe.
    """
    path = folder / "record.json"
    path.write_text(json.dumps(to_json(record)))
    unset = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
    inherited = {k: v for k, v in os.environ.items() if k not in unset}
    env = {**inherited, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color", **environment}
    command = [sys.executable, "-c", code, str(path)]
    if columns is None:
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, check=True, timeout=300
        )
        return done.stdout, done.stderr
    return _on_terminal(command, env, folder, columns)


def _on_terminal(
    command: list[str], env: dict[str, str], folder: Path, columns: int
) -> tuple[str, str]:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen(
        command, env=env, cwd=folder, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as child:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        assert child.stdout is not None
        stdout = child.stdout.read()
        assert child.wait(timeout=300) == 0, shown.decode()
    os.close(ours)
    return stdout, shown.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: the child closed its side
        return b""


def ladder_lines(report: TuningReport, record: Path | None = None) -> list[str]:
    """The whole closing report as plain lines."""
    table = [f"  {line}" for line in ladder_grid(report).lines()] if report.ladder else []
    others = [f"    {line}" for line in not_kept(report)]
    return [*table, *others, *(plain(line) for line in closing_lines(report, record))]
