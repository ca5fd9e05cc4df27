"""Figures of a timeline: every microsecond of the device is accounted for, by its cause."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.kinds.kernel_rooflines import elementwise_share
from gpurun.records.finding import FindingType
from gpurun.timeline.columns import Columns
from gpurun.timeline.device_work import on_device, steady
from gpurun.timeline.figures_of import figures_of
from gpurun.timeline.model import (
    Group,
    Kernel,
    KernelKind,
    Operator,
    Phase,
    Range,
    RuntimeCall,
)
from gpurun.timeline.runtime_calls import launch_times
from gpurun.timeline.time_intervals import Intervals
from tests.unit.diagnosis_cases import found
from tests.unit.timelines import copy, device, kernel, launch, phase, steps, sync, timeline


def union(*pairs: tuple[int, int]) -> Intervals:
    return Intervals.union(np.array([a for a, _ in pairs]), np.array([b for _, b in pairs]))


def test_intervals_agree_with_counting_each_moment() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        pairs = [(int(a), int(a + n)) for a, n in rng.integers(1, 40, (12, 2))]
        others = [(int(a), int(a + n)) for a, n in rng.integers(1, 40, (5, 2))]
        one, other = union(*pairs), union(*others)
        covered = {t for a, b in pairs for t in range(a, b)}
        also = {t for a, b in others for t in range(a, b)}
        assert one.total_ns == len(covered)
        assert one.overlap_ns(other) == len(covered & also)
        assert one.gaps(5, 70).total_ns == len(set(range(5, 70)) - covered)
        assert one.within(10, 30).total_ns == len(covered & set(range(10, 30)))


def test_no_intervals_cover_nothing() -> None:
    none = union()
    assert none.total_ns == 0
    assert none.gaps(0, 10).total_ns == 10
    assert none.overlap_ns(union((0, 5))) == 0


def test_a_timeline_without_kernels_has_no_figures_of_the_device() -> None:
    figures = figures_of(timeline(100))
    assert figures.idle is None
    assert figures.kernel_share is None
    assert figures.copies is None
    assert figures.syncs is None


def test_a_pause_in_the_loader_is_a_wait_for_data() -> None:
    figures = figures_of(
        timeline(
            1000,
            [kernel(0, 400, correlation=1), kernel(900, 1000, correlation=2)],
            ranges=[phase(Phase.DATA, 350, 850)],
            runtime_calls=[launch(0, 1), launch(880, 2)],
            steps=steps(1, 1000),
        )
    )
    assert figures.kernel_share == pytest.approx(0.5)
    idle = figures.idle
    assert idle is not None
    assert idle.total == pytest.approx(0.5)
    assert idle.data == pytest.approx(0.45)
    assert idle.host == pytest.approx(0.05)
    assert (idle.sync, idle.launch, idle.other) == (0, 0, 0)


def test_a_pause_after_the_host_waited_is_the_synchronisations_up_to_the_length_of_the_wait() -> (
    None
):
    def idle_after(wait: int) -> float | None:
        idle = figures_of(
            timeline(
                1000,
                [kernel(0, 400, correlation=1), kernel(700, 1000, correlation=2)],
                runtime_calls=[launch(0, 1), sync(401 - wait, 401), launch(650, 2)],
            )
        ).idle
        assert idle is not None
        assert idle.total == pytest.approx(0.3)
        return idle.sync

    assert idle_after(400) == pytest.approx(0.3)
    assert idle_after(100) == pytest.approx(0.1)


def test_short_late_launches_are_told_from_a_busy_host_and_from_waiting_work() -> None:
    figures = figures_of(
        timeline(
            1000,
            [
                kernel(0, 10, correlation=1),
                kernel(60, 70, correlation=2),  # launched 40 µs late
                kernel(570, 600, correlation=3),  # 0.5 ms of something else before it
                kernel(900, 1000, correlation=4),  # launched long ago
            ],
            runtime_calls=[launch(0, 1), launch(50, 2), launch(560, 3), launch(565, 4)],
        )
    )
    idle = figures.idle
    assert idle is not None
    assert idle.launch == pytest.approx(0.05)
    assert idle.host == pytest.approx(0.5)
    assert idle.other == pytest.approx(0.3)
    assert idle.data is None
    assert idle.sync == 0


def test_copies_are_exposed_where_no_kernel_hides_them() -> None:
    figures = figures_of(
        timeline(
            1000,
            [kernel(0, 500)],
            copies=[copy(400, 600, pageable=True), copy(800, 900)],
            steps=steps(2, 500),
        )
    )
    assert figures.copies is not None
    pageable, pinned = figures.copies
    assert (pageable.pageable, pinned.pageable) == (True, False)
    assert (pageable.share, pinned.share) == (pytest.approx(0.2), pytest.approx(0.1))
    assert (pageable.exposed_share, pinned.exposed_share) == (
        pytest.approx(0.1),
        pytest.approx(0.1),
    )
    assert pageable.bytes_per_step == pinned.bytes_per_step == 1 << 19
    assert figures.idle is not None
    assert figures.idle.total == pytest.approx(0.3)


def test_launches_queue_and_grids() -> None:
    figures = figures_of(
        timeline(
            1000,
            [
                kernel(100, 200, correlation=1, grid=(8, 1, 1)),
                kernel(200, 500, correlation=2, grid=(400, 2, 1)),
            ],
            runtime_calls=[launch(0, 1), launch(10, 2), launch(600, 9, "cudaMalloc")],
            devices=[device(132)],
            steps=steps(2, 500),
        )
    )
    launches = figures.launches
    assert launches is not None
    assert launches.kernels_per_step == 1
    assert launches.mean_kernel_us == pytest.approx(200)
    assert figures.gpu_idle_time_ms == pytest.approx(0.3)
    assert launches.queue_depth == pytest.approx((95 + 185) / 1000)
    assert launches.small_grid_share == pytest.approx(0.25)
    assert launches.device_allocations_per_step == 0.5


def test_only_communication_that_no_kernel_hides_is_exposed() -> None:
    figures = figures_of(
        timeline(
            1000,
            [
                kernel(0, 400),
                kernel(300, 700, "ncclAllReduce", Group.COMMUNICATION, message_bytes=4096),
            ],
            steps=steps(1, 1000),
        )
    )
    assert figures.communication is not None
    assert figures.communication.share == pytest.approx(0.4)
    assert figures.communication.exposed_share == pytest.approx(0.3)
    assert figures.communication.bytes_per_step == 4096
    assert figures.kernel_share == pytest.approx(0.4)


def test_a_pause_in_which_ranks_exchange_on_the_host_is_communication_and_no_busy_host() -> None:
    figures = figures_of(
        timeline(
            1000,
            [kernel(0, 400, correlation=1), kernel(800, 1000, correlation=2)],
            ranges=[Range(350_000, 750_000, 7, "gloo:all_reduce")],
            runtime_calls=[launch(0, 1), launch(790, 2)],
            steps=steps(1, 1000),
        )
    )
    assert figures.communication is not None
    assert figures.communication.share == pytest.approx(0.4)
    assert figures.communication.exposed_share == pytest.approx(0.35)
    assert figures.idle is not None
    assert figures.idle.total == pytest.approx(0.4)
    assert figures.idle.exchange == pytest.approx(0.35)
    assert figures.idle.host == pytest.approx(0.05)


def test_kernels_of_an_exchange_say_nothing_of_the_batch_or_of_fusion() -> None:
    nccl = kernel(300, 900, "ncclDevKernel", Group.COMMUNICATION, grid=(24, 1, 1))
    figures = figures_of(
        timeline(
            1000,
            [kernel(0, 200, "relu", Group.ELEMENTWISE, grid=(1000, 1, 1)), nccl],
            devices=[device()],
        )
    )
    assert figures.communication is not None
    assert figures.communication.exposed_share == pytest.approx(0.6)
    assert figures.launches is not None
    assert figures.launches.small_grid_share == 0
    assert elementwise_share(Evidence(figures=figures)) == pytest.approx(0.2)
    assert found(Evidence(figures=figures), FindingType.KERNEL_EFFICIENCY) is None


def test_of_a_chain_of_elementwise_kernels_the_longest_stays() -> None:
    """Other sizes may be other tensors, short kernels are a matter of launches, and a product ends
    the chain.
    """
    wide, narrow = (4096, 1, 1), (8, 1, 1)
    chain = [
        kernel(0, 100, "mul", grid=wide),
        kernel(100, 250, "mul", grid=wide),
        kernel(250, 270, "cast", grid=narrow),
        kernel(270, 275, "mul", grid=wide),
        kernel(275, 400, "mul", grid=wide),
    ]
    product = kernel(400, 600, "gemm", Group.MATMUL, grid=wide)
    after = kernel(600, 700, "mul", grid=wide)
    share = figures_of(timeline(1000, [*chain, product, after])).fusable_share
    assert share == pytest.approx(0.100 + 0.125)
    apart = figures_of(timeline(1000, chain, copies=[copy(260, 261)])).fusable_share
    assert apart == pytest.approx(0.100), "a copy ends the chain, too"


def test_precision_and_the_top_of_kernels_and_operators() -> None:
    figures = figures_of(
        timeline(
            1000,
            [
                kernel(0, 300, "sgemm", Group.MATMUL, tensor_core=False),
                kernel(300, 400, "hgemm", Group.MATMUL, tensor_core=True),
                kernel(400, 450),
                kernel(500, 550),
            ],
            operators=[
                Operator("aten::mm", Group.MATMUL, 4, 400_000),
                Operator("aten::relu", Group.ELEMENTWISE, 2, 500_000),
            ],
            steps=steps(2, 500),
        )
    )
    assert figures.precision is not None
    assert figures.precision.tensor_core_share == pytest.approx(0.25)
    assert figures.precision.outside_share_of_window == pytest.approx(0.3)
    assert figures.top_kernels is not None
    assert figures.top_kernels[0].name == "sgemm"
    assert {k.name: k.calls_per_step for k in figures.top_kernels}["relu"] == 1
    assert figures.group_shares == pytest.approx({"matmul": 0.8, "elementwise": 0.2})
    assert figures.top_operators is not None
    assert [o.name for o in figures.top_operators] == ["aten::relu", "aten::mm"]


def test_waits_are_summed_up() -> None:
    calls = [sync(0, 100), sync(50, 200), sync(300, 350)]
    figures = figures_of(timeline(1000, runtime_calls=calls, steps=steps(2, 500)))
    assert figures.syncs is not None
    assert figures.syncs.share == pytest.approx(0.25)
    assert figures.syncs.per_step == 1.5


def test_parts_of_a_step_come_from_the_ranges() -> None:
    ranges = [phase(Phase.DATA, 0, 100), phase(Phase.FORWARD, 100, 300)]
    figures = figures_of(timeline(1000, steps=steps(2, 500), ranges=ranges))
    assert figures.step_parts is not None
    assert figures.step_parts.data_ms == pytest.approx(0.05)
    assert figures.step_parts.forward_ms == pytest.approx(0.1)
    assert figures.step_parts.optimizer_ms is None


def test_leading_steps_that_are_much_longer_are_left_out_of_a_foreign_recording() -> None:
    lengths = [500, 300, 100, 100, 110, 100, 100, 100]
    starts = np.cumsum([0, *lengths])
    marks = [phase(Phase.STEP, int(a), int(b)) for a, b in pairwise(starts)]
    kernels = [kernel(int(a), int(a) + 50) for a in starts[:-1]]
    whole = timeline(int(starts[-1]), kernels, steps=marks)
    kept = steady(whole)
    assert kept.window_begin_ns == 800_000
    assert kept.kernels is not None
    assert len(kept.kernels) == 6
    assert figures_of(kept).step_ms == pytest.approx(0.61 / 6)
    assert steady(kept) is kept
    own = replace(whole, sources=("steps", "kineto"))
    assert steady(own) is own  # gpurun's own window is steady, and its sums are of all of it


def test_columns_and_plain_records_give_the_same_figures() -> None:
    ran = [Kernel(n * 10, n * 10 + 5, n % 2, 7, n, KernelKind("gemm")) for n in range(100)]
    launches = range(99, 4, -1)
    calls = [RuntimeCall(n * 10 - 3, n * 10 - 1, 1, n, "cudaLaunchKernel") for n in launches]
    columns: Columns[Kernel] = Columns(Kernel)
    for each in ran:
        columns.add(*(getattr(each, field.name) for field in dataclasses.fields(Kernel)))
    for index in (0, 1):
        one = on_device(columns, index)
        assert isinstance(one, Columns), "a large trace stays small"
        assert list(one) == list(on_device(ran, index))
        for events in (one, on_device(ran, index)):
            times, known = launch_times(events, calls, "end_ns")
            ours = [event.correlation for event in events]
            assert known.tolist() == [number >= 5 for number in ours]
            assert times[known].tolist() == [number * 10 - 1 for number in ours if number >= 5]
    assert on_device(one, 1) is one, "nothing to leave out"
