"""A model that cannot be compiled, takes for ever or is compiled anew in each step: it is said."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.isolation.available_modes import choose
from gpurun.records.result import KnobOutcome
from gpurun.records.tuning import TrialPurpose
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import TrialRequest
from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, run_under
from tests.integration.launched import ORPHAN_SECONDS

SCRIPT = """
import json, torch
torch.set_num_threads(1)
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 16), torch.nn.Linear(16, 2)
        self.stage = "none"
    def forward(self, x):
        {in_forward}
        return self.b(self.a(x).relu())

{before}
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(60):
    {in_step}
    loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.arange(8) % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(json.dumps(loss.item()))
"""
COMPILER = """#!/bin/sh
case "$*" in *--version*|*-dumpversion*) exec g++ "$@";; esac
{does}
"""
FAILS = "echo 'train.cpp:1:1: error: no such header here' >&2; exit 1"
HANGS = "exec sleep 86399"
COMPILE = {"compile": "default"}


def script(in_forward: str = "pass", before: str = "", in_step: str = "pass") -> str:
    return SCRIPT.format(in_forward=in_forward, before=before, in_step=in_step)


@pytest.fixture
def compiler(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The environment in which the C++ compiler does what it is told, once it really compiles."""

    def make(does: str) -> dict[str, str]:
        path = tmp_path / "bin" / "c++"
        path.parent.mkdir()
        path.write_text(COMPILER.format(does=does))
        path.chmod(0o755)
        return {"CXX": str(path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}

    return make


def the_outcome(run: KnobRun) -> tuple[str, str]:
    """The last word on the knob, whatever was said of it in the meantime."""
    return run.knobs[-1][1:]


@pytest.mark.slow
def test_a_model_that_is_compiled_is_applied_once_there_is_a_graph(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    assert run_under(gpurun, tmp_path, script(), COMPILE).outcomes("compile") == ["applied"]


@pytest.mark.slow  # quick twin: the compiling that fails, in this file
def test_a_forward_of_which_nothing_can_be_compiled_is_not_applied(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    source = script(before="Net.forward = torch._dynamo.disable(Net.forward)")
    outcome, reason = the_outcome(run_under(gpurun, tmp_path, source, COMPILE))
    assert outcome == "skipped"
    assert "nothing in the model's forward" in reason


def test_compiling_that_fails_costs_the_gain_and_never_the_training(
    tmp_path: Path, gpurun: Gpurun, compiler: Callable[[str], dict[str, str]]
) -> None:
    plain = run_under(gpurun, tmp_path, script(), {})
    run = run_under(gpurun, tmp_path, script(), COMPILE, env=compiler(FAILS))
    assert run.printed == pytest.approx(plain.printed)
    assert run.outcomes("compile") == ["skipped"]
    assert "could not be compiled" in run.knobs[0][2]
    assert "error: no such header here" in run.knobs[0][2]


@pytest.mark.slow  # quick twin: compiling that fails, above
def test_compiled_code_that_was_torn_on_the_disk_costs_the_gain_and_never_the_training(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """torch compiles anew what it finds torn in its indexes, and fails on torn libraries."""
    cache = tmp_path / "compiled"
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    whole = run_under(gpurun, tmp_path, script(), COMPILE, env=kept)
    assert whole.outcomes("compile") == ["applied"]
    libraries = list(cache.rglob("*.so"))
    assert libraries
    for path in libraries:
        os.truncate(path, path.stat().st_size // 2)
    torn = run_under(gpurun, tmp_path, script(), COMPILE, env=kept)
    assert torn.printed == pytest.approx(whole.printed)
    outcome, reason = the_outcome(torn)
    assert outcome == "applied" or "could not be compiled" in reason


@pytest.mark.slow
def test_a_model_that_is_compiled_anew_in_each_step_is_no_compiled_model(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    source = script("x = x * len(self.stage)", in_step='model.stage = f"step {i}"')
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "settings.json").write_text('{"settings": {"compile": "default"}}')
    done = gpurun("--settings", "settings.json", "--json", "result.json", "train.py")
    said = done.stderr.decode()
    assert done.returncode == 0, said
    line = next(x for x in said.splitlines() if x.startswith("gpurun: knobs:"))
    assert line.startswith("gpurun: knobs: skipped compile (recompiled 8 times, then fell back")
    assert "self.stage == " in line


# -- in trials -------------------------------------------------------------------------------------


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TrialSeries]]:
    """Series of trials for a script in the current folder, with an environment of their own."""
    monkeypatch.chdir(tmp_path)
    opened: list[TrialSeries] = []

    def open_one(source: str, environment: dict[str, str]) -> TrialSeries:
        (tmp_path / "train.py").write_text(source)
        options = Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True)
        mode = choose(tmp_path, in_place=True).mode
        assert mode is not None
        folder = tmp_path / ".gpurun" / "runs" / "1"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("GPURUN_")}
        everything = {**inherited, **environment}
        opened.append(TrialSeries(options, folder, mode, everything, lambda steps, of: None))
        return opened[-1]

    yield open_one
    for series in opened:
        series.close()


@pytest.mark.slow
def test_compiling_that_never_ends_is_a_trial_given_up_and_leaves_no_process(
    tmp_path: Path,
    trials: Callable[..., TrialSeries],
    compiler: Callable[[str], dict[str, str]],
) -> None:
    series = trials(script(), compiler(HANGS))
    hung = series.run(TrialRequest(TrialPurpose.SCREEN, COMPILE, PROBE, patience_seconds=20))
    assert hung.throughput is None
    assert hung.record.status == "timeout"
    assert hung.record.reason.startswith("compiling did not end within ")
    assert processes_of(tmp_path) == []
    assert series.run(TrialRequest(TrialPurpose.SCREEN, {}, PROBE)).throughput, (
        "the next trial runs"
    )


@pytest.mark.slow
def test_compiling_that_fails_is_no_failure_of_the_script(
    trials: Callable[..., TrialSeries], compiler: Callable[[str], dict[str, str]]
) -> None:
    series = trials(script(), compiler(FAILS))
    trial = series.run(TrialRequest(TrialPurpose.SCREEN, COMPILE, PROBE))
    assert trial.record.status in ("stopped", "completed")
    assert trial.result is not None
    (outcome,) = trial.result.knobs
    assert isinstance(outcome, KnobOutcome)
    assert outcome.outcome == "skipped"
    assert "error: no such header here" in outcome.detail


def processes_of(folder: Path, patience: float = ORPHAN_SECONDS) -> list[Any]:
    """Command lines of living processes that were started for a trial below `folder`."""
    deadline = time.monotonic() + patience
    while (found := _living(str(folder).encode())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _living(folder: bytes) -> list[bytes]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"GPURUN_SPEC=" + folder in (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if ours and command:
            found.append(command)
    return found
