"""Ranks wait for the exchange of gradients."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import Finding, FindingType
from gpurun.records.profile_figures import ProfileFigures
from gpurun.replay.what_ifs import Change

ADVICE = (
    "DistributedDataParallel(gradient_as_bucket_view=True, static_graph=True): fewer copies and an "
    "earlier start; the same training",
    "a larger bucket_cap_mb (50, 100): fewer messages; the same training",
    "gradient accumulation with no_sync(), or a larger batch: fewer exchanges a sample; it changes "
    "the training",
    "gpurun --scale measures the exchange by leaving it out, and tries these in turn",
)


class GradientExchange(Diagnosis):
    """Communication between ranks that no kernel hides.

    Replayed without collectives; without a replay, the bound is the step less the collectives that
    no kernel hides. The rank that works longest is looked at: the others also wait for it, which is
    imbalance and not communication.
    """

    type: ClassVar[FindingType] = FindingType.MULTI_GPU_COMM
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE, Source.RANKS)

    def find(self, evidence: Evidence) -> Finding | None:
        """The least exposed share among the ranks: what the slowest rank itself waits."""
        ranks = evidence.rank_figures or (evidence.figures,)
        known = [rank for rank in ranks if rank.communication is not None]
        if not known:
            return None
        slowest = min(known, key=_exposed)
        share, communication = _exposed(slowest), slowest.communication
        assert communication is not None
        hidden = 1 - share / communication.share if communication.share else None
        return self.finding(
            evidence,
            None,
            f"collectives that no kernel hides take {percent(share)} of the step",
            [
                figure("exposed_communication_share", share, Source.TIMELINE),
                figure("communication_share", communication.share, Source.TIMELINE),
                figure("hidden_share_of_communication", hidden, Source.TIMELINE),
                figure("collectives_per_step", communication.per_step, Source.TIMELINE),
                figure("bytes_per_step", communication.bytes_per_step, Source.TIMELINE),
            ],
            ADVICE,
            replayed=evidence.replayed_gain(Change.COLLECTIVES),
            bound=gain_without(share),
        )


def _exposed(figures: ProfileFigures) -> float:
    return 0.0 if figures.communication is None else figures.communication.exposed_share
