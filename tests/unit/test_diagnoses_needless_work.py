"""Findings of work that a step could leave out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.diagnoses.run_evidence import evidence_of_timelines, xids_of
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.records.finding import FindingType, Location
from gpurun.records.messages.profile_events import COLLECTION
from gpurun.records.profile_figures import CopyShare
from gpurun.records.result import HostUse
from gpurun.timeline.model import CopyKind, Range
from tests.unit.diagnosis_cases import (
    FIGURES,
    SPLIT,
    found,
    gpu,
    healthy_cpu,
    healthy_gpu,
    result,
    sample,
)
from tests.unit.made_timelines import Made, host_bound, ns
from tests.unit.simulated_training import report_of
from tests.unit.timelines import steps, timeline


@pytest.mark.parametrize(
    ("kind", "named"), [("d2h", FindingType.D2H_COPY), ("d2d", FindingType.D2D_COPY)]
)
def test_copies_that_no_kernel_hides_are_bounded_by_them(kind: str, named: FindingType) -> None:
    copies = (CopyShare(kind, None, 0.3, 0.2, 4.0, 8e6), CopyShare("h2d", True, 0.3, 0.3, 1.0, 1e6))
    finding = found(healthy_gpu(replace(FIGURES, copies=copies)), named)
    assert finding is not None
    assert "take 30 % of the step; no kernel hides 20 %" in finding.description
    assert finding.gain_upper_bound == pytest.approx(1.25)
    hidden = (replace(copies[0], exposed_share=0.0),)
    assert found(healthy_gpu(replace(FIGURES, copies=hidden)), named) is None


def test_a_bucket_view_that_is_off_is_named_where_ranks_copy_gradients() -> None:
    figures = replace(FIGURES, copies=(CopyShare("d2d", None, 0.3, 0.2, 4.0, 8e6),))
    several, traits = replace(result(), ranks=2), {"copies_gradients": "train.py:30"}
    finding = found(healthy_gpu(figures, traits=traits, result=several), FindingType.D2D_COPY)
    assert finding is not None
    assert "gradient_as_bucket_view is off" in finding.description
    assert "gradient_as_bucket_view=True" in finding.recommendations[0]
    assert finding.location == Location("train.py", 30)
    for other in (healthy_gpu(figures, traits=traits), healthy_gpu(figures, result=several)):
        alone = found(other, FindingType.D2D_COPY)
        assert alone is not None
        assert "bucket" not in alone.description


def copying(kind: CopyKind) -> Made:
    """A step of 100 µs: a kernel of 50 µs, then a copy of 48 µs that nothing awaits."""
    made = Made()
    for number in range(8):
        at = 20.0 * number
        begin = 100.0 * number + 12
        made.kernel((at, at + 5), (begin, begin + 50))
        made.copy((at + 6, at + 9), (begin + 51, begin + 99), pageable=False, kind=kind)
        made.step(at, at + 15)
    return made


def test_copies_on_the_device_gain_what_the_replay_says() -> None:
    report = report_of(copying(CopyKind.D2D).timeline())
    assert report.replay is not None
    assert report.replay.mismatch is None, report.replay.mismatch
    finding = next(each for each in report.findings if each.type is FindingType.D2D_COPY)
    assert finding.replayed_gain == pytest.approx(100 / 51, rel=0.03)
    assert "copies on the device gone" in [each.change for each in report.what_if]


def test_collections_of_garbage_are_replayed_away() -> None:
    """The host takes 100 µs a step, 30 of which it collects."""
    made = host_bound()
    made.ranges = [Range(ns(100.0 * n + 50), ns(100.0 * n + 80), 1, COLLECTION) for n in range(6)]
    report = report_of(made.timeline())
    finding = next(each for each in report.findings if each.type is FindingType.GARBAGE_COLLECTION)
    assert finding.replayed_gain == pytest.approx(100 / 70, rel=0.03)
    assert "gc.freeze()" in finding.recommendations[0]


def test_without_a_device_collections_are_bounded_by_their_time() -> None:
    ranges = [
        *steps(10, 100),
        *(Range(ns(n * 100), ns(n * 100 + 20), 1, COLLECTION) for n in range(10)),
    ]
    window = timeline(1000, steps=steps(10, 100), ranges=ranges)
    finding = found(evidence_of_timelines([window], Thresholds()), FindingType.GARBAGE_COLLECTION)
    assert finding is not None
    assert finding.gain_upper_bound == pytest.approx(1.25)


def test_recomputation_needs_room_in_memory() -> None:
    traits = {"recomputes": "torch.utils.checkpoint"}
    roomy = healthy_cpu(traits=traits, result=result(SPLIT, memory_share=0.2))
    finding = found(roomy, FindingType.RECOMPUTATION)
    assert finding is not None
    assert finding.knob == "needless_recompute"
    assert finding.gain_upper_bound == pytest.approx(10 / 7, rel=1e-3)
    full = healthy_cpu(traits=traits, result=result(SPLIT, memory_share=0.7))
    assert found(full, FindingType.RECOMPUTATION) is None
    unknown = healthy_cpu(traits=traits)
    assert found(unknown, FindingType.RECOMPUTATION) is None
    on_gpu = healthy_gpu(traits=traits, result=result(devices=(gpu(memory_used_bytes=10 << 30),)))
    finding = found(on_gpu, FindingType.RECOMPUTATION)
    assert finding is not None
    assert (finding.level, finding.gain_upper_bound) == ("note", None)


def test_others_on_the_device_are_a_note() -> None:
    shared = healthy_gpu(result=result(devices=(gpu(foreign_processes=2),)))
    finding = found(shared, FindingType.SHARED_DEVICE)
    assert finding is not None
    assert finding.level == "note"
    assert finding.description == "2 processes of others used the device meanwhile"


def test_padding_bounds_what_fewer_tokens_gain() -> None:
    finding = found(healthy_cpu(traits={"padding": "0.430 of 8 × 512 tokens"}), FindingType.PADDING)
    assert finding is not None
    assert finding.description == "43 % of the first batch's 8 × 512 tokens are padding"
    assert finding.gain_upper_bound == pytest.approx(1.75, abs=0.01)
    for told in ("0.010 of 8 × 512 tokens", "nonsense"):
        assert found(healthy_cpu(traits={"padding": told}), FindingType.PADDING) is None


def test_errors_of_a_devices_memory_are_critical_where_they_are_new() -> None:
    def level(*errors: int | None) -> str | None:
        samples = tuple(replace(sample(), uncorrected_ecc_errors=each) for each in errors)
        finding = found(healthy_gpu(device_samples=samples), FindingType.DEVICE_ERRORS)
        return None if finding is None else finding.level

    assert level(None, None) is None
    assert level(0, 0) is None
    assert level(3, 3) == "warning"
    assert level(3, None, 4) == "critical"


def test_errors_of_the_driver_are_critical_where_no_script_can_cause_them() -> None:
    def told(*xids: int) -> tuple[str, str] | None:
        seen = tuple(("GPU 1", xid) for xid in xids)
        finding = found(healthy_gpu(xids=seen), FindingType.DEVICE_ERRORS)
        return None if finding is None else (finding.level, finding.description)

    assert told() is None
    assert told(45, 43, 45) is None, "a process ended"
    assert told(31, 45) == (
        "warning",
        "the driver reported XID 31 on GPU 1 in the run: a kernel used an address that is not its "
        "own",
    )
    assert told(45, 79, 45) == (
        "critical",
        "the driver reported XID 79 on GPU 1 in the run: the GPU has fallen off the bus",
    )
    assert told(1234) == (
        "critical",
        "the driver reported XID 1234 on GPU 1 in the run: see NVIDIA's list of XID errors",
    )


def test_errors_of_a_gpu_that_the_run_did_not_use_are_not_its_own() -> None:
    one, other = replace(sample(), xids=(31, 31)), replace(sample(), uuid="GPU-2", cuda_index=1)
    other = replace(other, xids=(79,))
    nameless = replace(one, cuda_index=None)
    assert xids_of([one, other], [gpu()]) == (("GPU 0", 31), ("GPU 0", 31))
    assert xids_of([nameless], [gpu()]) == (("GPU-1", 31), ("GPU-1", 31))
    assert ("GPU 1", 79) in xids_of([one, other], []), "it ended before any use was measured"


def test_a_governor_that_holds_the_cores_down_is_a_note() -> None:
    held = replace(result().host or HostUse(None, None, None, None), slow_governor="powersave")
    finding = found(healthy_cpu(result=result(host=held)), FindingType.CPU_GOVERNOR)
    assert finding is not None
    assert finding.level == "note"
    assert "'powersave'" in finding.description
