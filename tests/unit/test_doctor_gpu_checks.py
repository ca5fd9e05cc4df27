"""`gpurun doctor --gpu`: what the figures of a card at work mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.arguments.subcommand_flags import parse_doctor
from gpurun.doctor.gpu_checks import GpuProbe, GpuProbes, checks_of, governor_check, gpu_checks
from gpurun.records.command_reports import Check, State

SOUND = GpuProbe("NVIDIA H200", 6.9e14, 1755.0, 1980.0, 0x4, 0, False, False)


def checks(*gpus: GpuProbe, bus: float | None = None, xids: int | None = 0) -> dict[str, Check]:
    found = list(checks_of(GpuProbes(gpus, bus, xids)))
    for one in found:
        assert bool(one.cost) == (one.state in (State.LIMITED, State.MISSING))
    return {one.what: one for one in found}


def test_a_sound_card_is_fine() -> None:
    found = checks(SOUND, SOUND, bus=4.2e11)
    assert {one.state for one in found.values()} == {State.OK}
    assert found["GPU 0 product"].found == "690 TFLOP/s, 69.7 % of the peak"
    assert found["GPU 1 clock"].found == "1755 of 1980 MHz under load"
    assert found["all-reduce"].found == "2 GPUs: 420 GB/s bus bandwidth"


@pytest.mark.parametrize(
    ("gpu", "what", "cost"),
    [
        (GpuProbe("NVIDIA H200", 2e14), "GPU 0 product", "slower than such a GPU should"),
        (GpuProbe("NVIDIA H200", error="no memory"), "GPU 0 product", "did not compute"),
        (GpuProbe("NVIDIA H200", 7e14, 900.0, 1980.0, 0x48), "GPU 0 clock", "heat"),
        (GpuProbe("NVIDIA H200", 7e14, ecc_errors=3), "GPU 0 memory errors", "ended a process"),
        (GpuProbe("NVIDIA H200", 7e14, rows_pending=True), "GPU 0 memory errors", "bad row"),
        (GpuProbe("NVIDIA H200", 7e14, rows_failed=True), "GPU 0 memory errors", "can be wrong"),
    ],
)
def test_a_card_in_trouble_is_told_with_its_cost(gpu: GpuProbe, what: str, cost: str) -> None:
    assert cost in checks(gpu)[what].cost


def test_figures_that_are_not_told_are_no_trouble() -> None:
    bare = checks(GpuProbe("An unknown card", 1e13), xids=None)
    assert bare["GPU 0 product"].state is State.OK
    assert "not known" in bare["GPU 0 product"].found
    assert bare["GPU 0 memory errors"].state is State.UNNEEDED
    assert bare["XID errors"].state is State.UNNEEDED
    assert checks(SOUND, xids=2)["XID errors"].state is State.LIMITED


def test_a_probe_that_fails_says_why() -> None:
    (one,) = checks_of("no answer within 180 s")
    assert (one.state, one.found) == (State.MISSING, "no answer within 180 s")
    assert next(iter(gpu_checks(has_gpu=False))).state is State.UNNEEDED


@pytest.mark.parametrize(
    ("governor", "driver", "state"),
    [
        ("performance", "acpi-cpufreq", State.OK),
        ("powersave", "intel_pstate", State.OK),
        ("powersave", "acpi-cpufreq", State.LIMITED),
        ("ondemand", "acpi-cpufreq", State.LIMITED),
    ],
)
def test_the_governor_of_the_cores_counts(
    tmp_path: Path, governor: str, driver: str, state: State
) -> None:
    (tmp_path / "scaling_governor").write_text(f"{governor}\n")
    (tmp_path / "scaling_driver").write_text(f"{driver}\n")
    assert governor_check(tmp_path / "scaling_governor").state is state
    assert governor_check(tmp_path / "none").state is State.UNNEEDED


def test_the_cards_work_only_if_asked() -> None:
    assert parse_doctor(["--gpu"]).gpu
    assert not parse_doctor([]).gpu
