"""What a run says of a GPU that it cannot use, or of which it is told little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.records.events import TorchEvent
from gpurun.records.samples import HostSample
from tests.unit.recorded_runs import MS, UNIX_NS, end, root, steady, write_events
from tests.unit.test_measure_run_summary import device, summary, write_samples

WHEN = range(1010, 1590, 50)
"""Milliseconds after the start at which steps are measured."""


def noted(folder: Path, *events: Any, samples: list[Any]) -> tuple[str, ...]:
    """The notes of a run of these events and 60 steps."""
    write_events(folder, [*events, steady(60), end()])
    write_samples(folder, samples)
    return summary(folder).notes


def on_host(at_ms: float) -> HostSample:
    return HostSample(UNIX_NS + int(at_ms * MS), 1.0, 100, 1)


def test_a_torch_without_cuda_beside_a_gpu_is_said_once(tmp_path: Path) -> None:
    torch = TorchEvent("2.13.0+cpu", 2, None, gpu_build=False)
    samples = [device(at) for at in WHEN]
    notes = noted(tmp_path, torch, root(), samples=samples)
    said = "training runs on the CPU although there is a GPU (NVIDIA H200)"
    assert [n for n in notes if said in n] == [f"this torch is built without CUDA: {said}"]
    assert summary(tmp_path).devices == (), "a GPU that idles beside the training is not its device"


@pytest.mark.parametrize(
    ("torch", "samples"),
    [
        (TorchEvent("2.13.0+cpu", 2, None, gpu_build=False), [on_host(100)]),
        (TorchEvent("2.11.0+cu130", 2, None, gpu_build=True), [device(1100)]),
        (TorchEvent("2.11.0", 2, None), [device(1100)]),
    ],
    ids=["no GPU", "CUDA build", "record of an older gpurun"],
)
def test_a_training_on_the_cpu_for_other_reasons_is_no_note(
    tmp_path: Path, torch: TorchEvent, samples: list[Any]
) -> None:
    notes = noted(tmp_path, torch, root(), samples=samples)
    assert not any("GPU" in note for note in notes)


def test_a_gpu_of_which_nvml_tells_nothing_is_said(tmp_path: Path) -> None:
    notes = noted(tmp_path, root("cuda:0"), samples=[on_host(100), on_host(900)])
    assert any(note.startswith("NVML reports nothing about the GPU") for note in notes)


def test_figures_that_nvml_refuses_are_null_and_one_note(tmp_path: Path) -> None:
    refused = ("utilisation: not supported", "power: not supported", "memory: no permission")
    blind = {"utilization_percent": None, "power_watts": None, "refused": refused}
    notes = noted(tmp_path, root("cuda:0"), samples=[device(at, **blind) for at in WHEN])
    said = "utilisation, power (not supported); memory (no permission)"
    assert [n for n in notes if "refuse" in n or "does not report" in n] == [
        f"NVML does not report all of NVIDIA H200: {said}"
    ]
    assert summary(tmp_path).gpu_utilization_percent is None
