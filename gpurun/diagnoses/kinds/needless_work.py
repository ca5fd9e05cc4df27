"""Work that a step could leave out: collections, passes that run twice, padding, compilations."""

from __future__ import annotations

import re

from gpurun.diagnoses.api import NOTICEABLE, Seen, diagnosis, gain_without, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.kinds.whole_run import beyond_usual, working_ns
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.records.finding import FindingType
from gpurun.records.messages.profile_events import COLLECTION
from gpurun.records.messages.traits import CHANGING_SHAPES, PADDING, RECOMPUTES
from gpurun.replay.what_ifs import Change
from gpurun.timeline.time_intervals import intervals

ROOM = 0.50
"""With less memory in use than this there is room for what a script computes again."""
TOLD_PADDING = re.compile(r"(0\.\d+) of (.+)")
"""The detail of the trait."""
ADVICE_GARBAGE = (
    "call gc.freeze() before the loop: what was made until then is not looked at again",
    "collect by hand once in many steps: gc.disable(), then gc.collect()",
)
ADVICE_RECOMPUTATION = (
    "leave out torch.utils.checkpoint, or use it for the largest blocks only: memory has room",
)
ADVICE_PADDING = (
    "put sequences of like length into one batch (bucketing), and pad to the longest of the batch",
    "pack several sequences into one row, with a mask or position ids that keep them apart",
)
ADVICE_SHAPES = (
    "DataLoader(drop_last=True), so that the last batch is as large as the others",
    "pad to a few lengths, or compile with torch.compile(dynamic=True)",
)


@diagnosis(FindingType.GARBAGE_COLLECTION, Source.STEPS, change=Change.COLLECTION)
def garbage_collection(evidence: Evidence) -> Seen | None:
    """Python collects garbage in the steps.

    Replayed without the host's pauses during collections. Without a replay, the bound is the step
    less the collections, as far as no device works meanwhile.
    """
    timeline = evidence.timeline
    found = [] if timeline is None else timeline.named(COLLECTION)
    if timeline is None or not found or timeline.window_ns <= 0:
        return None
    share = intervals(found).total_ns / timeline.window_ns
    idle = 1.0 if evidence.idle is None else evidence.idle.total
    return Seen(
        "Python collects garbage {share} of the profiled time",
        measured(Source.STEPS, collection_share=share, collections=len(found)),
        ADVICE_GARBAGE,
        bound=gain_without(min(share, idle)),
        share=share,
    )


@diagnosis(FindingType.RECOMPUTATION, Source.STEPS, Source.DEVICE)
def recomputation(evidence: Evidence) -> Seen | None:
    """The script computes forward passes again though memory has room for their results.

    Triggered where `torch.utils.checkpoint` ran and less than half of the memory is in use. On the
    CPU the bound is the step less a forward pass; on a GPU the host's clock does not tell it.
    """
    used = evidence.memory_used_share
    if used is None and evidence.result is not None:
        used = evidence.result.memory_share
    if RECOMPUTES not in evidence.traits or used is None or used >= ROOM:
        return None
    split, step = evidence.split, evidence.step_ms
    again = None
    if not evidence.on_gpu and split is not None and split.forward_ms is not None and step:
        again = gain_without(split.forward_ms / step)
    return Seen(
        f"forward passes are computed again, with {percent(used)} of the memory in use",
        measured(Source.STEPS, recomputes=evidence.traits[RECOMPUTES], memory_used_share=used),
        ADVICE_RECOMPUTATION,
        severity=max(NOTICEABLE, gain_severity(again or 1.0)),
        knob="needless_recompute",
        bound=again,
    )


@diagnosis(FindingType.CHANGING_SHAPES, Source.STEPS)
def changing_shapes(evidence: Evidence) -> Seen | None:
    """A compiled model gets batches of many shapes, and is compiled again for them.

    Triggered where the script compiles and many shapes were seen. The bound is all steps at the
    median. Loaders whose last batch is smaller are named.
    """
    shapes = evidence.traits.get(CHANGING_SHAPES)
    if shapes is None or not (evidence.applied("compile") or "compile" in evidence.traits):
        return None
    lengths = working_ns(evidence.window)
    cost = beyond_usual(lengths) if len(lengths) else None
    uneven = [
        loader.key
        for loader in evidence.loaders
        if not loader.drop_last and (loader.dataset_length or 0) % (loader.batch_size or 1)
    ]
    return Seen(
        f"the compiled model gets {shapes}; long steps cost {percent(cost)} of the time",
        measured(Source.STEPS, shapes=shapes, smaller_last_batch=uneven, cost_share=cost),
        ADVICE_SHAPES,
        bound=gain_without(cost),
    )


@diagnosis(FindingType.PADDING, Source.STEPS)
def padding(evidence: Evidence) -> Seen | None:
    """A part of the tokens is padding, which is computed like any other.

    Measured of the first batch: by its mask, else by equal tokens at the ends of its rows. The
    bound is a step that takes as much less as there are fewer tokens.
    """
    told = TOLD_PADDING.match(evidence.traits.get(PADDING, ""))
    if told is None:
        return None
    padded, size = float(told[1]), told[2]
    return Seen(
        f"{percent(padded)} of the first batch's {size} are padding",
        measured(Source.STEPS, padding_share=padded, batch=size),
        ADVICE_PADDING,
        bound=gain_without(padded),
    )
