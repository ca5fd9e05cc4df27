"""What befell one half of a pair alone is a ground to measure it again; figures never are."""

from __future__ import annotations

from gpurun.measure.machine import CROWDED
from gpurun.pairs.engine import disturbance, trouble_of_both
from gpurun.records.result import HostUse, RunResult
from tests.unit.bench_launches import device, result

CALM, HOT = result(1000.0), result(500.0, devices=(device("thermal"),))


def of(one: RunResult, other: RunResult, *, live: bool = False) -> str | None:
    return disturbance((one, other), ("baseline", "current"), live=live)


def test_a_half_that_was_only_slower_is_not_disturbed() -> None:
    assert of(CALM, result(500.0)) is None
    assert of(HOT, HOT) is None


def test_a_gpu_that_was_throttled_in_one_half_only_is_named_with_it() -> None:
    assert of(CALM, HOT) == "the GPU was throttled in the current half only (thermal)"
    assert of(HOT, CALM, live=True) == "the GPU was throttled in the baseline half only (thermal)"


def test_another_process_on_the_gpu_in_one_half_only_is_named_with_it() -> None:
    alone, beside = (result(1.0, devices=(device(foreign=n),)) for n in (0, 1))
    told = "another process computed on the GPU in the {} half only"
    assert of(alone, beside) == told.format("current")
    assert of(beside, alone) == told.format("baseline")
    assert of(beside, CALM) is None, "not known is not none"


def test_a_half_that_waited_for_cores_alone_is_disturbed() -> None:
    waited, free = (result(1.0, cores_lost_percent=lost) for lost in (14.0, 1.0))
    assert of(waited, free) == (
        "the baseline half waited for cores for 14 % of its time, and the other for 1 %"
    )
    assert of(free, waited) is not None
    assert of(waited, waited) is None, "what befell both is in both figures"
    assert of(waited, result(1.0)) is None, "not known is not none"
    assert of(waited, free, live=True) is None, "it falls on the turns of both sides"


def test_a_side_of_a_live_pair_reaches_the_power_cap_by_its_own_work() -> None:
    capped = result(1000.0, devices=(device("software power cap"),))
    assert of(CALM, capped) is not None
    assert of(CALM, capped, live=True) is None
    told = "the GPU was throttled (software power cap)"
    assert trouble_of_both((CALM, capped), live=True) == told, "the other side cools it meanwhile"


def test_what_befell_both_halves_is_trouble_and_no_ground_to_measure_again() -> None:
    beside = result(1.0, devices=(device(foreign=2),))
    for one, told in (
        (beside, "another process computed on the GPU throughout"),
        (HOT, "the GPU was throttled (thermal)"),
    ):
        assert of(one, one) is None
        assert trouble_of_both((one, one), live=False) == told
    assert trouble_of_both((CALM, HOT), live=False) is None


def test_programs_that_leave_too_few_cores_trouble_live_pairs() -> None:
    """Luck then decides which of two sides gets a core."""
    busy = HostUse(50.0, 2.0, 1, 1, others_cpu_percent=1e6)
    crowded = result(1.0, host=busy, core_wait_percent=90.0)
    assert trouble_of_both((crowded, crowded), live=True) == CROWDED
    assert trouble_of_both((crowded, crowded), live=False) is None
