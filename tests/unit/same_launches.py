"""Verdicts on launches made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import Effect
from gpurun.records.tuning import GuardVerdict
from gpurun.same.guard_record import guard_verdict
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import Distance, Measured, Name
from gpurun.same.sameness_table import Kind
from gpurun.same.verdict import Sameness, judge


def judged(
    baselines: Sequence[LaunchAudit], candidates: Sequence[LaunchAudit], effect: Effect
) -> GuardVerdict:
    """The verdict as a tuning writes it down, with these launches and no others."""
    return guard_verdict(judge(baselines, candidates, effect), baselines, candidates)


def missing(
    baselines: Sequence[LaunchAudit], candidates: Sequence[LaunchAudit], effect: Effect
) -> frozenset[str]:
    """The launches that the verdict says might explain what is off."""
    return judge(baselines, candidates, effect).missing


def verdict(same: bool, wanting: str) -> Sameness:
    """One without a comparison: the same, or off by what launches of this source may explain."""
    if same:
        return Sameness((), ())
    row = Measured(Name(Kind.OUTPUTS), Distance(0.1, "off"), None, 0.05, 0.0)
    return Sameness((row,), ("off",), frozenset({wanting}))
