"""`gpurun doctor --gpu` on a real card."""

from __future__ import annotations

import pytest

from gpurun.doctor.driver_probe import answer_of
from gpurun.doctor.gpu_checks import GPU_PROGRAM, PROBE_SECONDS, GpuProbes

pytestmark = pytest.mark.gpu


def test_a_card_at_work_tells_its_speed_and_clock() -> None:
    found = answer_of(GpuProbes, GPU_PROGRAM, PROBE_SECONDS)
    assert isinstance(found, GpuProbes), found
    assert found.devices
    for gpu in found.devices:
        assert gpu.error == ""
        assert gpu.flops_per_second is not None
        assert gpu.flops_per_second > 1e12
        assert gpu.sm_clock_mhz is not None
    assert (found.bus_bytes_per_second is not None) == (len(found.devices) > 1)
