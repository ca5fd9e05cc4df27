"""Which launches may be started before their turn, and what these import first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.arguments.options import Target, TargetKind
from gpurun.errors import GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec
from gpurun.knobs.api import Skip
from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import ImportsEvent, ProcessEvent, TorchEvent
from gpurun.runtime.observe.loaded_modules import changed_variables
from gpurun.trials import prestart
from gpurun.trials.prestart import Prestarted, what_to_import

SCRIPT = Target(TargetKind.SCRIPT, "train.py")
TORCH = TorchEvent("2.13", 1, None)
SETS = TorchEvent("2.13", 1, None, changed_variables=("OMP_NUM_THREADS",))
IMPORTS = ImportsEvent(("torchvision", "pandas"))
LATER = ImportsEvent(("torchvision",), changed_variables=("HF_HOME",))


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "available_cores", lambda: 2.0)


def first_launch(torch: TorchEvent | None, imports: ImportsEvent | None) -> ProcessLog:
    process = ProcessEvent(1, None, None, None, ("train.py",), "3.12", 0, clock_ns=0)
    return ProcessLog(Path("events.jsonl"), process, torch=torch, imports=imports)


@pytest.mark.parametrize(
    ("imports", "modules"),
    [(IMPORTS, ("torch", "torchvision", "pandas")), (LATER, ("torch",)), (None, ("torch",))],
)
def test_it_imports_what_the_first_launch_imported(
    imports: ImportsEvent | None, modules: tuple[str, ...]
) -> None:
    assert what_to_import(SCRIPT, first_launch(TORCH, imports), ranks=False) == modules


@pytest.mark.parametrize(
    ("target", "torch", "ranks", "reason"),
    [
        (SCRIPT, SETS, False, "the script sets OMP_NUM_THREADS before it imports torch"),
        (SCRIPT, None, False, "it imports no torch"),
        (SCRIPT, TORCH, True, "its processes are started by another program"),
        (Target(TargetKind.COMMAND, "sh"), TORCH, False, "its processes are started by another"),
    ],
)
def test_what_a_process_cannot_import_early_is_named(
    target: Target, torch: TorchEvent | None, ranks: bool, reason: str
) -> None:
    found = what_to_import(target, first_launch(torch, IMPORTS), ranks=ranks)
    assert isinstance(found, Skip)
    assert found.reason.startswith(reason)


def test_one_core_alone_is_left_to_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "available_cores", lambda: 1.0)
    found = what_to_import(SCRIPT, first_launch(TORCH, IMPORTS), ranks=False)
    assert found == Skip("a process beside a trial needs a core of its own")


def test_the_folder_of_a_launch_that_could_not_be_started_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(spec: LaunchSpec) -> None:
        raise GpurunError("no room for a sandbox")

    monkeypatch.setattr(prestart, "Sandbox", no_room)
    left = tmp_path / "control" / "orders"
    left.parent.mkdir()
    left.touch()
    log = tmp_path / "output.log"
    spec = LaunchSpec(("python",), {}, tmp_path, (), (), Mode.IN_PLACE, log)
    Prestarted().start(spec, tmp_path)
    assert not left.exists()


def test_a_variable_that_lightning_sets_for_torch_stops_no_early_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch reads it whenever it is asked for GPUs, not while it is imported."""
    start = dict(os.environ)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    assert changed_variables(start) == ()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert changed_variables(start) == ("OMP_NUM_THREADS",)
