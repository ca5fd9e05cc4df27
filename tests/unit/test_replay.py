"""The graph of profiled steps on timelines made by hand: each rule gives the time of the sum."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.replay.graph_changes import (
    pauses_in,
    with_batches_ready,
    with_copies_ahead,
    with_free_launches,
    with_loader_apart,
    with_other_ranks,
    with_work_scaled,
    without_calls,
    without_collectives,
    without_device,
    without_host,
    without_reads,
    without_recording,
    without_waits,
    without_work,
)
from gpurun.replay.replay_check import StepTimes
from gpurun.replay.replayed_steps import (
    StepFigures,
    median_step_ms,
    recorded_figures,
    replayed_figures,
)
from gpurun.replay.step_events import Edge, NotReplayable
from gpurun.replay.step_graph import StepGraph, step_graph
from gpurun.timeline.columns import Columns
from gpurun.timeline.model import (
    Awaited,
    CopyKind,
    Group,
    Kernel,
    KernelKind,
    Range,
    RuntimeCall,
    Timeline,
)
from gpurun.timeline.runtime_calls import Role
from gpurun.timeline.time_intervals import intervals
from tests.unit.made_timelines import (
    AUTOGRAD,
    MAIN,
    OTHER,
    Made,
    deviations,
    device_bound,
    host_bound,
    ns,
    replayed,
    sync_bound,
)


def graph(made: Made) -> StepGraph:
    return step_graph(made.timeline())


def step_us(changed: StepGraph) -> float:
    return replayed_figures(changed).step_ms * 1e3


def microseconds(figures: StepFigures) -> tuple[float, float, float]:
    return tuple(
        round(each * 1e3, 2) for each in (figures.step_ms, figures.wait_ms, figures.idle_ms)
    )


@pytest.mark.parametrize(
    ("made", "times"),
    [
        (device_bound(), (101, 0, 1)),
        (host_bound(), (100, 0, 90)),
        (sync_bound(), (100, 57, 40)),
        (sync_bound(name="cudaStreamSynchronize"), (100, 57, 40)),
        (sync_bound(name="cudaEventSynchronize"), (100, 57, 40)),
    ],
)
def test_steps_are_replayed_as_they_were_recorded(made: Made, times: tuple[int, int, int]) -> None:
    """Step, wait and idle time: the wait is the sync's 60 µs less the 3 that it takes itself."""
    assert microseconds(recorded_figures(graph(made))) == times
    assert microseconds(replayed_figures(graph(made))) == times


def test_without_device_only_a_host_bound_step_stays() -> None:
    assert step_us(without_device(graph(host_bound()))) == 100
    assert step_us(without_device(graph(device_bound()))) == 20
    assert step_us(without_device(graph(sync_bound()))) == 43  # 10 launch + 5 + 3 sync + 25 Python


def test_without_host_only_a_device_bound_step_stays() -> None:
    assert step_us(without_host(graph(device_bound()))) == 101
    assert step_us(without_host(graph(host_bound()))) < 15


def test_a_sync_that_is_removed_lets_the_host_run_ahead() -> None:
    """The device then works without a pause: 60 µs of kernel, and 1.3 between two of them."""
    changed = without_waits(graph(sync_bound()))
    assert step_us(changed) == pytest.approx(61.3, abs=0.1)
    assert replayed_figures(changed).wait_ms == 0


@pytest.mark.parametrize("pageable", [True, False])
def test_a_value_that_is_not_read_needs_no_copy_and_no_wait(pageable: bool) -> None:
    """`.cpu()` to memory that is not pinned waits inside the copy, else in a call behind it.

    5 µs of Python lie before the copy: they stay, and so does a copy that nobody awaits.
    """
    made = Made()
    for number in range(5):
        at = 100.0 * number
        made.kernel((at, at + 10), (at + 12, at + 62))
        made.copy(
            (at + 15, at + 68 if pageable else at + 20),
            (at + 63, at + 65),
            pageable=pageable,
            kind=CopyKind.D2H,
        )
        if not pageable:
            made.call("cudaStreamSynchronize", at + 21, at + 68)
        made.copy((at + 70, at + 75), (at + 77, at + 80), pageable=False, kind=CopyKind.D2H)
        made.step(at, at + 95)
    changed = without_reads(graph(made))
    assert replayed_figures(changed).wait_ms == 0
    assert replayed_figures(changed).host_ms * 1e3 == pytest.approx(47, abs=1), "10, 5, 2, 5, 25"
    assert step_us(changed) == pytest.approx(56, abs=1.5), "50 and 3 µs of work, and their gaps"


def test_a_wait_for_the_copy_of_a_batch_is_gone_only_with_the_copy() -> None:
    made = Made()
    for number in range(5):
        at = 100.0 * number
        made.copy((at, at + 5), (at + 7, at + 47), pageable=False)
        made.call("cudaStreamSynchronize", at + 6, at + 50)
        made.kernel((at + 55, at + 60), (at + 62, at + 92))
        made.step(at, at + 95)
    built = graph(made)
    assert step_us(without_reads(built)) == step_us(built) == 100
    assert step_us(with_copies_ahead(built)) == pytest.approx(55, abs=2), "the host's own work"


def test_free_launches_leave_what_has_another_cause() -> None:
    """A host-bound step of 10 µs of launch and 90 of pauses, of which 60 are told apart."""
    built = graph(host_bound())
    loader = intervals([Range(ns(100 * n + 20), ns(100 * n + 80), MAIN, "data") for n in range(6)])
    assert step_us(with_free_launches(built, pauses_in(built, loader))) == 60
    assert step_us(with_free_launches(built, 0 * built.edges.lag_ns)) < 15


def test_kernels_of_half_the_time_gain_only_where_the_device_is_awaited() -> None:
    def half(made: Made) -> float:
        return step_us(with_work_scaled(graph(made), lambda each: True, 0.5))

    assert half(device_bound()) == 51
    assert half(host_bound()) == pytest.approx(100)
    assert half(sync_bound()) == 70


def test_pauses_of_the_host_are_taken_by_the_times_in_which_they_fall() -> None:
    """In each step of the sync-bound training Python has 22 µs from 78 to 100."""
    made = sync_bound()
    tail = intervals([Range(ns(100 * n + 78), ns(100 * n + 100), MAIN, "log") for n in range(6)])
    built = graph(made)
    pauses = pauses_in(built, tail)
    assert step_us(built.with_lags(built.edges.lag_ns - pauses)) == 78
    assert step_us(built.with_lags(built.edges.lag_ns - pauses // 2)) == 89


def test_the_cost_of_recording_is_taken_off_each_call_of_the_host() -> None:
    assert step_us(without_recording(graph(host_bound()), 4_000)) == 96
    assert step_us(without_recording(graph(sync_bound()), 2_000)) == pytest.approx(96, abs=2)
    assert step_us(without_recording(graph(device_bound()), 4_000)) == 101


def backward(steps: int = 5) -> Made:
    """Forward in one thread, backward in another, an optimizer step in the first again."""
    made = Made()
    for number in range(steps):
        at = 100.0 * number
        made.kernel((at, at + 10), (at + 12, at + 20))
        made.kernel((at + 30, at + 40), (at + 42, at + 50), thread=AUTOGRAD)
        made.kernel((at + 50, at + 60), (at + 62, at + 70), thread=AUTOGRAD)
        made.kernel((at + 80, at + 90), (at + 92, at + 99))
        made.step(at, at + 95)
    return made


def test_threads_that_take_turns_wait_for_each_other() -> None:
    """Cheaper calls in either thread make the step shorter: the two are one sequence."""
    made = graph(backward())
    assert made.of_kind(Edge.HANDOVER).sum() == 10
    assert step_us(made) == 100
    assert step_us(without_recording(made, 5_000)) == 80


def test_a_thread_that_polls_delays_nobody() -> None:
    made = backward()
    for number in range(40):
        made.call("cudaEventQuery", 12.0 * number + 3, 12.0 * number + 11, OTHER)
    built = graph(made)
    names = {
        built.events.calls.name[c]
        for c in built.call_of(built.edges.target[built.of_kind(Edge.HANDOVER)])
    }
    assert names == {"cudaLaunchKernel"}
    assert step_us(built) == 100


def test_a_full_queue_holds_the_host_up() -> None:
    """1,022 launches fit; each later one waits for the end of the oldest: 20 µs a kernel."""
    made, end = Made(), 0.0
    at = 0.0
    ends: list[float] = []
    for number in range(4000):
        free = ends[number - 1022] if number >= 1022 else 0.0
        done = max(at + 5, free)
        begin = max(done + 1.5, end + 1)
        end = begin + 20
        ends.append(end)
        made.kernel((at, done), (begin, end))
        if number % 100 == 99:
            made.step(at - 5, done + 1)
        at = done + 2
    built = graph(made)
    real, found = recorded_figures(built), replayed_figures(built)
    assert real.wait_ms > 0.3 * real.step_ms
    assert found.wait_ms == pytest.approx(real.wait_ms, abs=0.02 * real.step_ms)
    assert found.host_ms == pytest.approx(real.host_ms, abs=0.02 * real.step_ms)


def two_streams(told: bool) -> Made:
    """A kernel of 40 µs in stream 7; one in stream 8 waits for it by an event."""
    made = Made()
    for number in range(5):
        at = 100.0 * number
        made.kernel((at, at + 5), (at + 6, at + 46))
        record = made.call("cudaEventRecord", at + 6, at + 7)
        wait = made.call("cudaStreamWaitEvent", at + 8, at + 9)
        made.kernel((at + 10, at + 15), (at + 47, at + 67), stream=8)
        if told:
            made.awaited.append(Awaited(ns(at + 8), ns(at + 9), wait, record, 7, 8))
        made.call("cudaDeviceSynchronize", at + 20, at + 70)
        made.step(at, at + 75)
    return made


@pytest.mark.parametrize("told", [True, False])
def test_a_stream_waits_for_the_event_of_another(told: bool) -> None:
    built = graph(two_streams(told))
    assert step_us(built) == pytest.approx(100, abs=1)
    assert built.inferred == (0 if told else 5)
    halved = with_work_scaled(built, lambda each: each.stream == 7, 0.5)
    assert step_us(halved) == pytest.approx(80, abs=1)


def test_a_sync_waits_for_its_own_stream_where_the_recording_tells_it() -> None:
    """Stream 8 works for long; the host waits for stream 7 alone."""
    made = Made()
    for number in range(5):
        at = 100.0 * number
        made.kernel((at, at + 5), (at + 7, at + 90), stream=8)
        made.kernel((at + 6, at + 11), (at + 13, at + 40))
        sync = made.call("cudaStreamSynchronize", at + 15, at + 43)
        made.awaited.append(Awaited(ns(at + 15), ns(at + 43), sync, 0, 7, None))
        made.step(at, at + 60)
    built = graph(made)
    assert built.inferred == 0
    longer = with_work_scaled(built, lambda each: each.stream == 7, 2.0)
    assert step_us(longer) == pytest.approx(127, abs=1)


def staged(steps: int = 5) -> Made:
    """A step copies from memory not pinned for 40 µs, and computes for 50."""
    made, end = Made(), 0.0
    for number in range(steps):
        at = 110.0 * number
        begin = max(at + 5, end + 1)
        made.copy((at, begin + 38), (begin, begin + 40), pageable=True, size=100_000)
        made.kernel((begin + 45, begin + 50), (begin + 51.5, begin + 101.5))
        end = begin + 101.5
        made.step(at, begin + 60)
    return made


def test_a_copy_of_memory_that_is_not_pinned_keeps_the_host_as_long_as_the_device() -> None:
    built = graph(staged())
    assert step_us(built) == pytest.approx(110, abs=1)
    ahead = with_copies_ahead(built)
    assert step_us(ahead) == pytest.approx(72)
    assert not ahead.of_kind(Edge.STAGE).any()


def test_allocator_calls_wait_for_the_device() -> None:
    made = Made()
    for number in range(5):
        at = 100.0 * number
        made.kernel((at, at + 5), (at + 7, at + 57))
        made.call("cudaFree", at + 10, at + 75)
        made.step(at, at + 80)
    built = graph(made)
    assert microseconds(replayed_figures(built))[1] == 47
    assert step_us(without_calls(built, [Role.ALLOCATE])) == pytest.approx(51.3, abs=0.1)
    longer = with_work_scaled(built, lambda each: True, 2.0)
    assert step_us(longer) == 150


def test_launches_that_each_wait_are_seen_as_such() -> None:
    """CUDA_LAUNCH_BLOCKING: two kernels of 20 µs a step; without it they queue up."""
    made = Made()
    for number in range(5):
        at = 60.0 * number
        made.kernel((at, at + 25), (at + 4, at + 24))
        made.kernel((at + 30, at + 55), (at + 34, at + 54))
        made.step(at, at + 58)
    built = graph(made)
    assert step_us(built) == pytest.approx(60, abs=0.5)
    assert step_us(without_waits(built, [Role.LAUNCH])) < 45


def test_fused_kernels_are_neither_launched_nor_run() -> None:
    made = Made()
    for number in range(5):
        at = 60.0 * number
        made.kernel((at, at + 10), (at + 12, at + 17))
        made.kernel((at + 20, at + 30), (at + 32, at + 37), group=Group.ELEMENTWISE)
        made.step(at, at + 40)
    built = graph(made)
    elementwise = built.events.work.where(
        lambda e: isinstance(e, Kernel) and e.group is Group.ELEMENTWISE
    )
    assert step_us(without_work(built, elementwise)) == 40


def test_batches_that_are_ready_make_a_loader_bound_step_short() -> None:
    """70 of 100 µs pass in the loader. With workers the batches come each 100 µs.

    Of the first of five waits nobody knows when the batch before was ready.
    """
    made = host_bound()
    made.ranges = [Range(ns(100 * n + 20), ns(100 * n + 90), MAIN, "data") for n in range(6)]
    waits = intervals(made.ranges)
    assert step_us(with_batches_ready(graph(made), waits)) == 30
    apart = with_loader_apart(graph(made), waits)
    assert step_us(apart) == 100
    assert step_us(without_host(apart)) < 15
    assert step_us(with_batches_ready(apart, waits)) == 30


def exchanging(arrival: float) -> Made:
    """A rank that computes for so long before each exchange; all end at 100 µs of each step."""
    made = Made()
    for number in range(5):
        at = 100.0 * number
        made.kernel((at, at + 5), (at + 7, at + arrival - 1))
        made.kernel((at + 6, at + 9), (at + arrival, at + 99), group=Group.COMMUNICATION)
        made.call("cudaDeviceSynchronize", at + 10, at + 99.5)
        made.step(at, at + 99.8)
    return made


def test_a_collective_lasts_as_long_as_for_the_rank_that_arrives_last() -> None:
    """The fast rank arrives at 20 and waits for the one that arrives at 80 and needs 19."""
    fast, slow = exchanging(20), exchanging(80)
    alone = graph(fast)
    assert step_us(without_collectives(alone)) == pytest.approx(21, abs=2)
    joint = with_other_ranks(alone, [slow.timeline(rank=1)])
    assert step_us(joint) == pytest.approx(100, abs=1)
    half = with_work_scaled(joint, lambda each: each.group is Group.OTHER, 0.5)
    assert step_us(half) == pytest.approx(100, abs=1)


def test_a_cuda_graph_is_opaque_unless_its_kernels_are_traced() -> None:
    made = Made()
    for number in range(5):
        at = 100.0 * number
        launch = made.call("cudaGraphLaunch", at, at + 10)
        kind = KernelKind("kernel")
        made.kernels += [
            Kernel(ns(at + 12), ns(at + 32), 0, 7, launch, kind),
            Kernel(ns(at + 33), ns(at + 93), 0, 7, launch, kind),
        ]
        made.step(at, at + 50)
    assert step_us(graph(made)) == pytest.approx(100, abs=0.5)
    made.kernels = [each for each in made.kernels if each.correlation != 3]
    with pytest.raises(NotReplayable, match="opaque"):
        graph(made)


def test_what_is_inside_another_call_is_a_part_of_it() -> None:
    made = host_bound()
    for number in range(6):
        made.call("cuKernelGetName", 100.0 * number + 2, 100.0 * number + 4)
    assert step_us(graph(made)) == 100


def refusal(timeline: Timeline) -> str:
    figures, changes = replayed(timeline)
    assert not changes
    assert figures.replayed_ms is None
    return figures.mismatch or ""


def test_a_recording_that_lacks_a_part_is_refused_with_the_reason() -> None:
    whole = host_bound().timeline()
    assert "0 steps" in refusal(replace(whole, steps=None))
    assert "1 steps" in refusal(replace(whole, steps=whole.steps and whole.steps[:1]))
    assert "no calls" in refusal(replace(whole, runtime_calls=None))
    assert "no work" in refusal(replace(whole, kernels=()))
    assert "no call of CUDA lies" in refusal(
        replace(
            whole,
            steps=(Range(ns(9000), ns(9001), 1, "step"), Range(ns(9002), ns(9003), 1, "step")),
        )
    )


def test_clocks_that_jump_are_refused_and_zero_lengths_are_not() -> None:
    made = host_bound()
    late = replace(
        made.timeline(),
        kernels=tuple(
            Kernel(k.begin_ns - ns(40), k.end_ns - ns(40), 0, 7, k.correlation, k.kind)
            for k in made.kernels
        ),
    )
    assert "clocks" in refusal(late)
    backwards = replace(
        made.timeline(),
        runtime_calls=tuple(
            RuntimeCall(c.begin_ns, c.begin_ns - 5, c.thread, c.correlation, c.name)
            for c in made.calls
        ),
    )
    assert "a clock jumped" in refusal(backwards)
    short = replace(
        made.timeline(),
        kernels=tuple(
            Kernel(k.begin_ns, k.begin_ns, 0, 7, k.correlation, k.kind) for k in made.kernels
        ),
    )
    figures, _ = replayed(short)
    assert figures.replayed_ms == pytest.approx(0.1)


def test_steps_that_overlap_or_repeat_count_once() -> None:
    made = host_bound()
    doubled = replace(
        made.timeline(),
        steps=tuple(
            each
            for step in made.steps
            for each in (step, Range(step.begin_ns + 5, step.end_ns - 5, MAIN, "step"))
        ),
    )
    figures, _ = replayed(doubled)
    assert figures.steps == 5
    assert figures.replayed_ms == pytest.approx(0.1)


def test_no_gain_is_claimed_where_the_plain_step_is_another() -> None:
    timeline = sync_bound().timeline()
    matched, gains = replayed(timeline, StepTimes(0.1, 0.098))
    assert matched.mismatch is None
    assert matched.recording_us_a_call == pytest.approx(1.0)
    assert all(each.gain is not None for each in gains)
    refused, none = replayed(timeline, StepTimes(0.1, 0.05))
    assert "unprofiled" in (refused.mismatch or "")
    assert none
    assert all(each.gain is None for each in none)


def test_a_wait_that_the_graph_does_not_explain_is_a_mismatch() -> None:
    """Half of the syncs last 60 µs longer than the device: nothing in the recording says why."""
    made = Made()
    for number in range(9):
        at, more = 200.0 * number, 60.0 * (number % 2 == 0)
        made.kernel((at, at + 10), (at + 12, at + 42))
        made.call("cudaDeviceSynchronize", at + 15, at + 45 + more)
        made.step(at, at + 120)
    figures, _ = replayed(made.timeline())
    assert figures.mismatch is not None
    assert deviations(figures)["wait"] > 0.05


def test_long_recordings_are_replayed_by_their_last_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpurun.replay.step_events.MOST_EVENTS", 9)
    figures, _ = replayed(host_bound(40).timeline())
    assert figures.steps == 3
    assert figures.replayed_ms == pytest.approx(0.1)
    monkeypatch.setattr("gpurun.replay.step_events.MOST_EVENTS", 2)
    assert "a step has over" in refusal(host_bound().timeline())


def test_columns_of_a_trace_are_read_as_records_are() -> None:
    made = sync_bound().timeline()
    calls: Columns[RuntimeCall] = Columns(RuntimeCall)
    for call in made.runtime_calls or ():
        calls.add(call.begin_ns, call.end_ns, call.thread, call.correlation, call.name)
    assert median_step_ms(step_graph(replace(made, runtime_calls=calls))) == pytest.approx(0.1)


def test_a_loader_bound_step_is_matched_and_gains_by_batches_alone() -> None:
    made = host_bound()
    made.ranges = [Range(ns(100 * n + 20), ns(100 * n + 90), MAIN, "data") for n in range(6)]
    figures, changes = replayed(made.timeline(), workers=True)
    assert figures.mismatch is None
    gains = {each.change: each.gain for each in changes}
    assert gains["batches ready when asked for"] == pytest.approx(100 / 30)
    assert "kernels twice as fast" not in gains
