"""Planted causes in simulated steps: the first finding is the repair that gains most, and its gain
is what the repaired steps take.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpurun.diagnoses.diagnosis_report import diagnosis_report
from gpurun.diagnoses.run_evidence import evidence_of_timelines
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.records.codec import to_json
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.events import ValueRead
from gpurun.records.finding import WARNING, Finding, FindingType, Location
from gpurun.replay.replay_check import StepTimes
from gpurun.replay.replayed_steps import median_step_ms
from gpurun.replay.step_graph import step_graph
from gpurun.report.findings_text import diagnosis_lines
from gpurun.report.page.findings_section import diagnosis_page
from gpurun.report.page.markdown_page import markdown_page
from gpurun.report.terminal_output import plain
from gpurun.timeline.model import MODEL_PHASES, Device, Group, KernelKind, Phase, Range, Timeline
from tests.unit.diagnosis_cases import function, gains_beyond_their_share, measured_kernels
from tests.unit.diagnosis_cases import kernel as counted
from tests.unit.made_timelines import MAIN, ns, sync_bound
from tests.unit.simulated_training import Simulated, report_of

STEPS = 8
Loop = Callable[[Simulated, bool], None]
"""One step, with the planted cause or without."""


def recorded(loop: Loop, planted: bool = True) -> Timeline:
    training = Simulated()
    for _ in range(STEPS):
        loop(training, planted)
        training.step()
    return training.timeline()


def gain_of_repair(loop: Loop) -> float:
    """The planted step over the repaired one, both as replayed."""
    steps = (median_step_ms(step_graph(recorded(loop, planted))) for planted in (True, False))
    planted, repaired = steps
    return planted / repaired


def first(loop: Loop) -> Finding:
    return report_of(recorded(loop)).findings[0]


def synchronized(training: Simulated, planted: bool) -> None:
    """44 `torch.cuda.synchronize()` a step, between layers of three short kernels."""
    with training.phase(Phase.FORWARD):
        for _ in range(44):
            training.kernels(3, 10)
            if planted:
                training.synchronize()
    training.python(60)


def with_indices(training: Simulated, planted: bool) -> None:
    """12 `nonzero()` a step, in the script's own loop behind the model."""
    with training.phase(Phase.FORWARD):
        training.kernels(20, 50)
    for _ in range(12):
        training.kernels(2, 6)
        if planted:
            training.item()
        training.python(20)
        training.kernels(2, 6)
    with training.phase(Phase.BACKWARD):
        training.kernels(40, 20)
    training.python(120)


def gradient_norms(training: Simulated, planted: bool) -> None:
    """`.item()` on the norms of 60 gradients, between backward pass and optimizer."""
    with training.phase(Phase.FORWARD):
        training.kernels(60, 15)
    with training.phase(Phase.BACKWARD):
        training.kernels(120, 15)
    for _ in range(60):
        training.kernels(1, 4)
        if planted:
            training.item()
    with training.phase(Phase.OPTIMIZER):
        training.kernels(60, 8)


def bookkeeping(training: Simulated, planted: bool) -> None:
    """Python that computes for 3 ms a step, and one `.item()` for the log, as in most scripts."""
    with training.phase(Phase.FORWARD):
        training.kernels(40, 15)
    training.item()
    training.python(3000 if planted else 20)


def tiny(training: Simulated, planted: bool) -> None:
    """A loop over rows of a tensor; one operation could do it."""
    with training.phase(Phase.FORWARD):
        training.kernels(20, 20)
    training.kernels(400 if planted else 1, 2, Group.ELEMENTWISE, (1, 1, 1))


def copied(training: Simulated, planted: bool) -> None:
    """The batch comes from memory that is not pinned."""
    if planted:
        training.batch(400)
    with training.phase(Phase.FORWARD):
        training.kernels(50, 20)


def loading(training: Simulated, planted: bool) -> None:
    """The loader takes 2 ms, in the script's process."""
    with training.phase(Phase.DATA):
        training.python(2000 if planted else 10)
    with training.phase(Phase.FORWARD):
        training.kernels(40, 20)


def chained(training: Simulated, planted: bool) -> None:
    """An activation by hand: ten kernels over the same elements."""
    with training.phase(Phase.FORWARD):
        for _ in range(6):
            training.kernels(1, 100, Group.MATMUL)
            training.kernels(10 if planted else 1, 30, Group.ELEMENTWISE, (4096, 1, 1))


PLANTED = [
    (synchronized, FindingType.CPU_GPU_SYNC),
    (with_indices, FindingType.CPU_GPU_SYNC),
    (gradient_norms, FindingType.CPU_GPU_SYNC),
    (bookkeeping, FindingType.HOST_BOUND),
    (tiny, FindingType.LAUNCH_BOUND),
    (copied, FindingType.H2D_COPY),
    (loading, FindingType.DATA_LOADING),
    (chained, FindingType.MEMORY_BANDWIDTH),
]


@pytest.mark.parametrize(("loop", "kind"), PLANTED)
def test_the_first_finding_is_what_was_planted_and_its_gain_that_of_the_repair(
    loop: Loop, kind: FindingType
) -> None:
    finding = first(loop)
    assert finding.type is kind
    assert finding.severity > WARNING
    assert finding.gain_upper_bound is None
    assert finding.replayed_gain == pytest.approx(gain_of_repair(loop), rel=0.05)


@pytest.mark.parametrize("loop", [loop for loop, _ in PLANTED])
def test_repaired_steps_have_no_warning(loop: Loop) -> None:
    report = report_of(recorded(loop, planted=False))
    assert report.replay is not None
    assert report.replay.mismatch is None
    assert [f for f in report.findings if f.severity > WARNING] == []


@pytest.mark.parametrize("loop", [loop for loop, _ in PLANTED])
def test_no_gain_is_larger_than_the_share_that_its_sentence_tells(loop: Loop) -> None:
    """The device's idle time is not what goes with the cause: the host may set the pace."""
    findings = report_of(recorded(loop)).findings
    assert findings
    assert gains_beyond_their_share(findings) == []


def found(report: DiagnosisReport, kind: FindingType) -> Finding | None:
    return next((f for f in report.findings if f.type is kind), None)


def test_findings_come_in_the_order_of_their_gains() -> None:
    """Waits and Python hold the step up; the greater gain is first, also above severity 1."""

    def both(training: Simulated, planted: bool) -> None:
        loading(training, True)
        bookkeeping(training, True)

    report = report_of(recorded(both))
    gains = [f.replayed_gain for f in report.findings if f.replayed_gain is not None]
    assert len(gains) >= 3
    assert gains == sorted(gains, reverse=True)
    assert report.findings[0].type is FindingType.HOST_BOUND


def test_a_copy_worth_seven_percent_is_a_note() -> None:
    def copying(training: Simulated, planted: bool) -> None:
        training.batch(80)
        with training.phase(Phase.FORWARD):
            training.kernels(60, 20)

    finding = found(report_of(recorded(copying)), FindingType.H2D_COPY)
    assert finding is not None
    assert finding.replayed_gain == pytest.approx(1.07, abs=0.01)
    assert finding.level == "note"


def test_a_wait_for_the_copy_of_a_batch_belongs_to_the_copy() -> None:
    """torch waits for the stream after it copied: without the copy there is nothing to wait for."""
    assert found(report_of(recorded(copied)), FindingType.CPU_GPU_SYNC) is None


def test_a_wait_is_python_in_no_profile_of_the_host() -> None:
    """The function whose line waits is not the one that Python's time is spent in.

    The samples tell it by themselves: those of the wait lie in a call of CUDA.
    """
    timeline = recorded(bookkeeping)
    calls = timeline.runtime_calls or ()
    waits = [call.end_ns - 1 for call in calls if "Synchronize" in call.name]
    reading = [(at, ((0, 57), (2, 90))) for at in waits]
    counting = [(at + ns(500), ((1, 71), (2, 91))) for at in waits]
    timeline = replace(
        timeline,
        host_moments=[*reading, *reading, *counting],
        host_functions=(
            function("read", 0.5, line=57),
            function("count", 0.4, line=70),
            function("main", 0.1, 1.0, line=90),
        ),
        host_sampled_seconds=1.0,
    )
    evidence = evidence_of_timelines([timeline], Thresholds())
    reads = (ValueRead("/home/me/train.py:57", ".item()", "cuda", 9, 9),)
    report = report_of(timeline, replace(evidence, reads=reads, read_steps=9))
    python, wait = (
        found(report, kind) for kind in (FindingType.HOST_BOUND, FindingType.CPU_GPU_SYNC)
    )
    assert python is not None
    assert python.location == Location("/home/me/train.py", 71, "count")
    assert wait is not None
    assert wait.location == Location("/home/me/train.py", 57)


def test_a_wait_between_two_calls_is_a_wait_and_its_share_is_what_the_replay_removes() -> None:
    timeline = recorded(bookkeeping)
    ends = [call.end_ns for call in timeline.runtime_calls or () if "Synchronize" in call.name]
    waits = replace(function("main", 0.6, line=71), blocked_seconds=0.57)
    timeline = replace(
        timeline,
        host_moments=[(at + ns(500), ((0, 71),)) for at in ends],
        host_functions=(waits,),
        host_sampled_seconds=1.0,
    )
    python = found(report_of(timeline), FindingType.HOST_BOUND)
    assert python is not None
    assert python.replayed_gain is not None
    share = 1 - 1 / python.replayed_gain
    told = f"the main thread waits at train.py:71 in main for {share * 100:.0f} % of the step"
    assert told in python.description


def test_products_outside_tensor_cores_are_replayed_at_the_peak_of_the_device() -> None:
    def products(training: Simulated, planted: bool) -> None:
        training.kernels(10, 300, Group.MATMUL)
        training.kernels(10, 50)

    timeline = recorded(products)
    outside = tuple(
        replace(k, kind=KernelKind("sgemm", k.group, k.group is not Group.MATMUL))
        for k in timeline.kernels or ()
    )
    timeline = replace(timeline, kernels=outside, devices=(Device(0, "H100", capability=(9, 0)),))
    finding = report_of(timeline).findings[0]
    assert finding.type is FindingType.PRECISION
    assert finding.replayed_gain == pytest.approx(3520 / 720, rel=0.01), "3,000 µs become 200"
    unknown = found(report_of(replace(timeline, devices=None)), FindingType.PRECISION)
    assert unknown is not None
    assert unknown.replayed_gain is None


@pytest.mark.parametrize(("length", "gain"), [(400, 2.0), (10, None)])
def test_a_kernel_of_few_warps_is_worth_what_the_step_would_gain(
    length: float, gain: float | None
) -> None:
    """At 10 % of its peak it takes ten times what it could."""

    def slow(training: Simulated, planted: bool) -> None:
        training.kernels(1, length)
        training.kernels(16, 20, Group.MATMUL)

    timeline = recorded(slow)
    named = tuple(
        replace(k, kind=KernelKind("my_kernel" if k.group is Group.OTHER else "gemm", k.group))
        for k in timeline.kernels or ()
    )
    counters = counted(occupancy_percent=10.0, sm_percent=10.0, dram_percent=5.0)
    timeline = replace(
        timeline, kernels=named, kernel_metrics=measured_kernels(counters).kernel_metrics
    )
    report = report_of(timeline)
    finding = found(report, FindingType.OCCUPANCY)
    assert (None if finding is None else finding.replayed_gain) == (
        gain and pytest.approx(gain, abs=0.05)
    )


def test_without_a_match_bounds_stay_and_the_report_says_why() -> None:
    """Steps outside of the window were much faster than what the replay explains."""
    timeline = recorded(copied)
    evidence = evidence_of_timelines([timeline], Thresholds())
    times = StepTimes(profiled_ms=1.46, plain_ms=0.7)
    report = diagnosis_report(evidence, "run", timelines=[timeline], step_times=times)
    finding = found(report, FindingType.H2D_COPY)
    assert finding is not None
    assert finding.replayed_gain is None
    assert finding.gain_upper_bound is not None
    assert {row.gain for row in report.what_if} == {None}
    shown = "\n".join(map(plain, diagnosis_lines(report)))
    why = "gains are upper bounds where nothing was replayed: a step takes"
    assert shown.count(why) == 1
    assert why in markdown_page(diagnosis_page(report))
    assert "gain: up to " in shown


def test_a_replayed_gain_is_shown_as_such() -> None:
    report = report_of(recorded(copied))
    shown = "\n".join(map(plain, diagnosis_lines(report)))
    for text in (shown, markdown_page(diagnosis_page(report))):
        assert "gain: 1.39× as replayed" in text
        assert "Estimated improvement: up to 1.39× (replayed; gains do not add up)" in text
        assert "upper bound" not in text


def odd_recordings() -> dict[str, Timeline]:
    """What recordings hold if something went wrong, or little was recorded."""
    whole = sync_bound().timeline()
    calls, kernels = whole.runtime_calls or (), whole.kernels or ()
    half, hour = len(calls) // 2, 3_600_000_000_000
    marked = [Range(ns(at), ns(at + 90), MAIN, name) for at in (5, 40) for name in MODEL_PHASES]
    return {
        "one step": sync_bound(1).timeline(),
        "no step": replace(whole, steps=()),
        "no marks of steps": replace(whole, steps=None),
        "a window of no length": replace(whole, window_end_ns=whole.window_begin_ns),
        "steps of no length": replace(
            whole, steps=[replace(each, end_ns=each.begin_ns) for each in whole.steps or ()]
        ),
        "kernels of no length": replace(
            whole, kernels=[replace(each, end_ns=each.begin_ns) for each in kernels]
        ),
        "ranges that overlap": replace(whole, ranges=marked),
        "a clock that jumps ahead": replace(
            whole,
            runtime_calls=[
                *calls[:half],
                *(
                    replace(c, begin_ns=c.begin_ns + hour, end_ns=c.end_ns + hour)
                    for c in calls[half:]
                ),
            ],
        ),
        "a clock that jumps back": replace(
            whole,
            kernels=sorted(
                (replace(k, begin_ns=k.begin_ns - hour, end_ns=k.end_ns - hour) for k in kernels),
                key=lambda each: each.begin_ns,
            ),
        ),
        "no device": replace(whole, kernels=(), copies=(), runtime_calls=()),
    }


@pytest.mark.parametrize("name", odd_recordings())
def test_of_an_odd_recording_no_gain_is_larger_than_its_share(name: str) -> None:
    assert gains_beyond_their_share(report_of(odd_recordings()[name]).findings) == []


@pytest.mark.parametrize("name", odd_recordings())
def test_of_an_odd_recording_there_is_a_report_of_finite_figures(name: str) -> None:
    report = report_of(odd_recordings()[name])
    assert json.loads(json.dumps(to_json(report), allow_nan=False))
    claimed = [each.replayed_gain for each in report.findings if each.replayed_gain is not None]
    assert report.replay is not None
    assert not claimed or report.replay.mismatch is None
