"""Calls of HIP, the runtime of AMD's devices, act as those of CUDA that they are named after."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.replay.replayed_steps import recorded_figures, replayed_figures
from gpurun.replay.step_graph import step_graph
from gpurun.timeline.runtime_calls import Role, is_sync, role_of
from tests.unit.made_timelines import Made, device_bound, host_bound, sync_bound


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("hipLaunchKernel", Role.LAUNCH),
        ("hipExtLaunchKernel", Role.LAUNCH),
        ("hipModuleLaunchKernel", Role.LAUNCH),
        ("hipExtModuleLaunchKernel", Role.LAUNCH),
        ("hipMemsetAsync", Role.LAUNCH),
        ("hipGraphLaunch", Role.GRAPH),
        ("hipMemcpyAsync", Role.COPY),
        ("hipMemcpyWithStream", Role.COPY),
        ("hipStreamSynchronize", Role.SYNC_STREAM),
        ("hipDeviceSynchronize", Role.SYNC_DEVICE),
        ("hipEventSynchronize", Role.SYNC_EVENT),
        ("hipEventRecord", Role.RECORD),
        ("hipStreamWaitEvent", Role.STREAM_WAIT),
        ("hipMalloc", Role.ALLOCATE),
        ("hipHostMalloc", Role.ALLOCATE),
        ("hipMallocAsync", Role.OTHER),
        ("hipster", Role.OTHER),
    ],
)
def test_a_call_of_hip_has_the_role_of_its_twin(name: str, role: Role) -> None:
    assert role_of(name) is role
    waits = role in (Role.SYNC_STREAM, Role.SYNC_DEVICE, Role.SYNC_EVENT)
    assert is_sync(name) is (waits or name == "hipMemcpyWithStream")


@pytest.mark.parametrize("made", [device_bound(), host_bound(), sync_bound()])
def test_steps_of_an_amd_device_replay_as_those_of_an_nvidia_one(made: Made) -> None:
    timeline = made.timeline()
    calls = [
        replace(call, name=call.name.replace("cuda", "hip", 1))
        for call in timeline.runtime_calls or ()
    ]
    one, other = step_graph(timeline), step_graph(replace(timeline, runtime_calls=calls))
    assert recorded_figures(other) == recorded_figures(one)
    assert replayed_figures(other) == replayed_figures(one)
