"""One of two profiles that are compared: all that the comparison may look at."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.records.finding import Finding
from gpurun.records.profile_figures import ProfileFigures
from gpurun.records.result import RunResult
from gpurun.replay.replay_check import StepTimes
from gpurun.timeline.model import Timeline


@dataclass(frozen=True)
class ProfiledSide:
    """One of the profiles. `timeline` and `figures`: of one rank, of its steady steps.

    `times`: where steps that were not profiled are known. `workers`: batches come from worker
    processes. `findings`: the causes that the profile shows. `notes`: what could not be seen.
    """

    subject: str
    timeline: Timeline | None = None
    figures: ProfileFigures | None = None
    times: StepTimes | None = None
    workers: bool = False
    result: RunResult | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def step_ms(self) -> float | None:
        """The mean profiled step; None where no steps are marked."""
        return None if self.figures is None else self.figures.step_ms
