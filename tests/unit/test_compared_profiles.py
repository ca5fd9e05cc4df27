"""Two profiles compared, made so that what each change explains of the step is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.profilers.recorded_profiles import recorded_profiles
from gpurun.records.diagnosis import (
    ChangeKind,
    ComparisonBasis,
    ProfileChange,
    ProfileComparison,
    ThingKind,
)
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.replay.compared_profiles import compared_profiles
from gpurun.replay.replayed_changes import BATCHES, SMALLER
from gpurun.replay.spent_time import ProfiledSide, kernel_name
from gpurun.timeline import from_nsys
from gpurun.timeline.device_work import steady
from gpurun.timeline.figures_of import figures_of
from gpurun.timeline.model import Group, Operator, Range, Timeline
from tests.conftest import REPOSITORY
from tests.recordings import unpacked
from tests.unit.made_timelines import MAIN, Made, ns
from tests.unit.timelines import kernel, steps, timeline

DATA = REPOSITORY / "tests" / "data"
GAP_US = 1.3
"""Between two kernels of a stream's queue, as made below."""


def made(*kernels: tuple[str, float], pace_us: float = 40, wait: bool = False) -> Timeline:
    """Ten steps of these kernels (µs), launched each `pace_us`; at the end the host may wait."""
    recording, host, device = Made(), 0.0, 0.0
    for _ in range(10):
        begin = host
        for name, length in kernels:
            started = max(host + 12, device + GAP_US)
            device = started + length
            recording.kernel((host, host + 10), (started, device), name=name)
            host += pace_us
        if wait:
            recording.call("cudaDeviceSynchronize", host, max(host, device) + 3)
            host = max(host, device) + 5
        recording.step(begin, host - 1)
    return recording.timeline()


def side(of: Timeline, subject: str = "a profile", **more: object) -> ProfiledSide:
    of = steady(of)
    return replace(ProfiledSide(subject, of, figures_of(of)), **more)  # type: ignore[arg-type]


def compared(before: ProfiledSide, after: ProfiledSide) -> ProfileComparison:
    found = compared_profiles(before, after)
    assert found is not None
    parts = [change.explained_ms for change in found.changes if change.explained_ms is not None]
    assert found.explained_ms == pytest.approx(sum(parts))
    assert found.explained_ms + found.not_explained_ms == pytest.approx(found.difference_ms)
    return found


def change(found: ProfileComparison, kind: ThingKind, name: str) -> ProfileChange:
    return next(each for each in found.changes if (each.kind, each.name) == (kind, name))


def test_an_added_kernel_and_a_doubled_one_explain_their_time_where_the_device_bounds() -> None:
    before = side(made(("conv", 100), ("norm", 50)))
    after = side(made(("conv", 200), ("norm", 50), ("gelu", 30)))
    found = compared(before, after)
    assert found.basis is ComparisonBasis.REPLAY
    assert found.difference_ms == pytest.approx(0.130 + GAP_US / 1e3, rel=1e-3)
    conv, gelu = found.changes[:2]
    assert (conv.name, conv.change) == ("conv", ChangeKind.SLOWER)
    assert (gelu.name, gelu.change) == ("gelu", ChangeKind.ADDED)
    assert conv.explained_ms == pytest.approx(0.100, rel=0.01)
    assert gelu.explained_ms == pytest.approx(0.030 + GAP_US / 1e3, rel=0.01)
    assert conv.explained_share == pytest.approx(0.100 / 0.1313, rel=0.01)
    assert conv.before_ms == pytest.approx(0.1)
    assert conv.after_ms == pytest.approx(0.2)
    assert (gelu.before_calls, gelu.after_calls) == (None, 1.0)
    assert abs(found.not_explained_ms) < 0.002


def test_the_other_way_round_the_same_changes_have_the_opposite_sign() -> None:
    one, other = (
        side(made(("conv", 100), ("norm", 50))),
        side(made(("conv", 200), ("norm", 50), ("gelu", 30))),
    )
    there, back = compared(one, other), compared(other, one)
    assert back.difference_ms == pytest.approx(-there.difference_ms)
    words = {"conv": ChangeKind.FASTER, "gelu": ChangeKind.LOST}
    for name, word in words.items():
        forth = change(there, ThingKind.KERNEL, name)
        reverse = change(back, ThingKind.KERNEL, name)
        assert reverse.change is word
        assert reverse.explained_ms == pytest.approx(-(forth.explained_ms or 0))
        assert reverse.explained_share == pytest.approx(forth.explained_share)


def test_a_doubled_kernel_that_the_step_does_not_wait_for_explains_nothing() -> None:
    before, after = (side(made(("conv", length), pace_us=100)) for length in (10, 20))
    found = compared(before, after)
    assert found.basis is ComparisonBasis.REPLAY
    conv = change(found, ThingKind.KERNEL, "conv")
    assert conv.change is ChangeKind.SLOWER
    assert abs(conv.explained_ms or 0) < 0.0005
    assert abs(found.difference_ms) < 0.0005


def test_a_slower_host_explains_a_step_that_it_bounds() -> None:
    found = compared(side(made(("conv", 10))), side(made(("conv", 10), pace_us=100)))
    first = found.changes[0]
    assert first.kind is ThingKind.HOST
    assert first.explained_ms == pytest.approx(0.060, rel=0.02)
    assert found.difference_ms == pytest.approx(0.060, rel=0.02)


def test_an_added_wait_explains_the_idle_time_after_it() -> None:
    kernels = [("conv", 100.0), ("norm", 60.0)]
    found = compared(side(made(*kernels)), side(made(*kernels, wait=True)))
    assert found.changes[0].name == "cudaDeviceSynchronize"
    assert found.changes[0].change is ChangeKind.ADDED
    assert found.changes[0].explained_share == pytest.approx(1, abs=0.1)


def test_the_parts_of_the_host_are_compared_where_both_mark_them() -> None:
    def marked(pace_us: float) -> ProfiledSide:
        recording = made(("conv", 10), pace_us=pace_us)
        ranges = [
            Range(step.begin_ns, step.begin_ns + ns(12), MAIN, "forward")
            for step in recording.steps or ()
        ]
        return side(replace(recording, ranges=tuple(ranges)))

    found = compared(marked(40), marked(100))
    assert found.changes[0].name == "between the parts of the step"
    assert found.changes[0].explained_share == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("workers", [False, True])
def test_a_slower_loader_explains_the_step_that_waits_for_it(workers: bool) -> None:
    def waiting(step_us: float) -> ProfiledSide:
        recording = Made()
        for number in range(10):
            at = step_us * number
            recording.kernel((at, at + 10), (at + 12, at + 22))
            recording.step(at, at + step_us - 5)
        ends = [at.end_ns for at in recording.steps]
        recording.ranges = [
            Range(ns(step_us * n + 20), end, MAIN, "data") for n, end in enumerate(ends)
        ]
        return side(recording.timeline(), workers=workers)

    found = compared(waiting(100), waiting(160))
    assert found.changes[0].name == (BATCHES if workers else "data")
    assert found.changes[0].explained_share == pytest.approx(1, abs=0.1)


def test_more_launches_of_the_same_kernel_are_more_calls() -> None:
    found = compared(side(made(("add", 30))), side(made(("add", 30), ("add", 30), ("add", 30))))
    first = found.changes[0]
    assert (first.name, first.change) == ("add", ChangeKind.MORE)
    assert (first.before_calls, first.after_calls) == (1, 3)
    assert first.explained_share == pytest.approx(1, abs=0.05)


def test_a_part_that_only_one_side_marks_is_all_its_own() -> None:
    def marked(name: str) -> ProfiledSide:
        recording = made(("conv", 10))
        begins = [step.begin_ns for step in recording.steps or ()]
        ranges = tuple(Range(begin, begin + ns(12), MAIN, name) for begin in begins)
        return side(replace(recording, ranges=ranges))

    found = compared(marked("forward"), marked("optimizer"))
    assert found.difference_ms == 0
    assert found.not_explained_ms == pytest.approx(0, abs=0.001)


def test_equal_profiles_differ_in_nothing() -> None:
    found = compared(side(made(("conv", 100))), side(made(("conv", 100))))
    assert found.difference_ms == 0
    assert [each for each in found.changes if each.explained_ms] == []
    assert {each.explained_share for each in found.changes} <= {None}


def test_without_a_replay_the_difference_is_that_of_the_devices_time() -> None:
    """No calls were recorded. A kernel hides another on a second stream, which costs nothing."""
    one = timeline(
        300, [kernel(100 * i, 100 * i + 60, "conv") for i in range(3)], steps=steps(3, 100)
    )
    both = [kernel(150 * i, 150 * i + 110, "conv") for i in range(3)]
    both += [kernel(150 * i + 10, 150 * i + 50, "hidden") for i in range(3)]
    both.sort(key=lambda each: each.begin_ns)
    found = compared(side(one), side(timeline(450, both, steps=steps(3, 150))))
    assert found.basis is ComparisonBasis.DEVICE_TIME
    assert found.why_no_replay == "before: no calls of CUDA were recorded"
    assert found.difference_ms == pytest.approx(0.050)
    assert change(found, ThingKind.KERNEL, "conv").explained_ms == pytest.approx(0.050)
    hidden = change(found, ThingKind.KERNEL, "hidden")
    assert hidden.after_ms == pytest.approx(0.040)
    assert hidden.explained_ms == 0
    assert found.not_explained_ms == pytest.approx(0)


def test_device_time_that_takes_the_place_of_idle_time_adds_up_to_no_difference() -> None:
    sides = [
        side(timeline(300, [kernel(100 * i, 100 * i + n) for i in range(3)], steps=steps(3, 100)))
        for n in (30, 70)
    ]
    found = compared(*sides)
    assert found.difference_ms == 0
    assert sorted(each.explained_ms or 0 for each in found.changes) == pytest.approx([-0.04, 0.04])
    assert found.not_explained_ms == pytest.approx(0)


def test_a_recording_of_the_cpu_is_compared_by_its_operators() -> None:
    def of(times: dict[str, int]) -> ProfiledSide:
        operators = [Operator(name, Group.OTHER, 10, us * 1000) for name, us in times.items()]
        window = sum(times.values()) + 500
        return side(timeline(window, steps=steps(10, window // 10), operators=operators))

    found = compared(of({"aten::mm": 1000, "aten::cat": 200}), of({"aten::mm": 2000}))
    assert found.basis is ComparisonBasis.OPERATORS
    told = {each.name: each.explained_ms for each in found.changes}
    assert told == {"aten::mm": pytest.approx(0.1), "aten::cat": pytest.approx(-0.02)}
    assert found.not_explained_ms == pytest.approx(0)


def test_functions_are_found_again_on_another_line_and_explain_nothing_by_themselves() -> None:
    def sampled(line: int, seconds: float) -> ProfiledSide:
        function = FunctionSamples("/a/train.py", line, "log", None, True, seconds, seconds, None)
        return side(
            replace(made(("conv", 100)), host_functions=(function,), host_sampled_seconds=1.0)
        )

    found = compared(sampled(10, 0.2), sampled(17, 0.5))
    logging = change(found, ThingKind.FUNCTION, "log (train.py:17)")
    step_ms = sampled(10, 0.2).step_ms or 0
    assert logging.before_ms == pytest.approx(0.2 * step_ms)
    assert logging.after_ms == pytest.approx(0.5 * step_ms)
    assert logging.explained_ms is None


def test_profiles_without_steps_are_not_compared() -> None:
    unmarked = side(timeline(100, [kernel(0, 50)]))
    assert compared_profiles(unmarked, unmarked) is None
    assert compared_profiles(side(made(("conv", 10))), unmarked) is None
    assert compared_profiles(ProfiledSide("nothing"), ProfiledSide("nothing")) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
            "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)",
            "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>, "
            "std::array<char*, 2ul> >(int, at::native::CUDAFunctor_add<float>)",
        ),
        ("triton_poi_fused_add_gelu_3", "triton_poi_fused_add_gelu_11"),
    ],
)
def test_kernels_are_the_same_by_their_short_names(one: str, other: str) -> None:
    found = compared(side(made((one, 100))), side(made((other, 150))))
    first = found.changes[0]
    assert first.change is ChangeKind.SLOWER
    assert first.explained_ms == pytest.approx(0.05, rel=0.01)
    assert found.kernels_matched == 1
    assert [(each.before, each.after) for each in found.renamed_kernels] == [((one,), (other,))]


def test_another_operation_is_another_kernel() -> None:
    names = {
        "triton_poi_fused_add_3", "triton_poi_fused_mul_3", "ampere_sgemm_128x64_tn",
        "ampere_sgemm_64x64_tn", "gelu_2",
    }  # fmt: skip
    assert len({kernel_name(name) for name in names}) == len(names)


def recorded(name: str, folder: Path) -> ProfiledSide:
    profile = recorded_profiles(unpacked(name, folder, DATA / "h100_profiles"))[0]
    return side(profile.timeline, times=profile.pace)


@pytest.mark.parametrize(
    ("fault", "kind", "of", "least"),
    [
        ("synchronize_each_step", ThingKind.CALL, "cudaDeviceSynchronize", 0.9),
        ("read_in_forward", ThingKind.CALL, "cudaStreamSynchronize", 0.9),
        ("pageable_copies", ThingKind.COPY, "host to device, pageable", 0.9),
        ("emptied_cache", ThingKind.CALL, "cudaFree", 0.7),
        ("elementwise_chain", ThingKind.KERNEL, "vectorized_elementwise_kernel<MulFunctor>", 0.5),
    ],
)
def test_a_planted_fault_is_the_change_that_explains_most(
    tmp_path: Path, fault: str, kind: ThingKind, of: str, least: float
) -> None:
    """The clean twin is the earlier profile. The remainder is no more than the replays are off,
    or a tenth of the difference.
    """
    found = compared(recorded(f"{fault}-clean", tmp_path), recorded(fault, tmp_path))
    first = found.changes[0]
    assert (first.kind, first.name, first.change) == (kind, of, ChangeKind.ADDED)
    assert found.basis is ComparisonBasis.REPLAY
    assert (first.explained_share or 0) > least
    assert found.replay_error_ms is not None
    assert abs(found.not_explained_ms) < max(found.replay_error_ms, 0.1 * found.difference_ms)


def test_launches_that_are_made_to_wait_explain_what_their_waits_cost(tmp_path: Path) -> None:
    """`launch_blocking` is the clean script of `emptied_cache` under CUDA_LAUNCH_BLOCKING."""
    found = compared(
        recorded("emptied_cache-clean", tmp_path), recorded("launch_blocking", tmp_path)
    )
    waiting = [each for each in found.changes if each.name.endswith("waiting for its own work")]
    assert found.changes[:2] == tuple(waiting)
    assert {each.change for each in waiting} == {ChangeKind.ADDED}
    assert sum(each.explained_share or 0 for each in waiting) == pytest.approx(1, abs=0.1)


def test_without_its_calls_the_same_recording_is_compared_by_device_time(tmp_path: Path) -> None:
    sides = [recorded(name, tmp_path) for name in ("elementwise_chain-clean", "elementwise_chain")]
    without: Callable[[ProfiledSide], ProfiledSide] = lambda each: side(  # noqa: E731
        replace(each.timeline or made(), runtime_calls=None)
    )
    found, by_replay = compared(*map(without, sides)), compared(*sides)
    assert found.basis is ComparisonBasis.DEVICE_TIME
    assert abs(found.not_explained_ms) < 0.02 * found.difference_ms
    names = [[each.name for each in f.changes if each.explained_ms][:2] for f in (found, by_replay)]
    assert names[0] == names[1]


def test_reports_of_nsight_systems_are_compared() -> None:
    sides = [
        side(from_nsys.read(DATA / "profiles" / f"h200_nsys{year}_mlp.sqlite")[0])
        for year in (2023, 2025)
    ]
    found = compared(*sides)
    assert found.basis is ComparisonBasis.REPLAY
    assert found.kernels_matched == 17
    assert found.changes[0].kind is ThingKind.HOST, "the same script, slower on the host"
    assert abs(found.not_explained_ms) <= (found.replay_error_ms or 0)
    assert [each.name for each in found.changes if each.kind is ThingKind.OTHERS] == [SMALLER]
