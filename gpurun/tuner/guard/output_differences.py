"""The distance between two trials' outputs: their sampled numbers, by the place of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from gpurun.records.messages.model_outputs import OutputsEvent, TensorFigures
from gpurun.stats.descriptive import mean, root_mean_square
from gpurun.tuner.guard.training_evidence import Evidence

TIGHT = {"bfloat16": 8e-3, "float16": 1e-3}
"""Relative RMS difference that another order of summation may make, by type of the output."""
TIGHT_FLOAT32 = 1e-4

SIGMAS = 2.0
"""Two numbers of a row change places by chance where one leads by so many errors at most."""
LARGEST_ERROR = 0.1
"""And by errors of this much of the scatter at most."""
FAR = 3.0
"""A number so many times as large as the RMS is rounded by more than others."""
Call = tuple[OutputsEvent, OutputsEvent]
"""A call in a trial, and the same call in the baseline."""


@dataclass(frozen=True)
class OutputTensor:
    """A tensor of a module's output: the module's class, where it stands, and its type."""

    module: str
    path: str
    dtype: str

    def __str__(self) -> str:
        return (
            f"output {self.path} of {self.module}" if self.path else f"the output of {self.module}"
        )

    @property
    def floating(self) -> bool:
        """True if its numbers are compared by size, not one by one."""
        return "float" in self.dtype or "complex" in self.dtype

    @property
    def tight(self) -> float:
        """The tolerance if only the order of summation differs."""
        return TIGHT.get(self.dtype, TIGHT_FLOAT32)


@dataclass
class Difference:
    """The distance of a tensor's sampled numbers, over calls."""

    apart: float = 0.0
    size: float = 0.0
    count: int = 0
    single: list[tuple[float, int]] = field(default_factory=list)
    """By call: the sum of squared differences, and how many numbers."""
    ours: float = 0.0
    """The squares of the candidate's own numbers; `size`: of the baseline's."""
    tempered: float = 0.0
    """The squares of differences, each in parts of its own number and of the call's RMS together.

    Where errors grow with the numbers (boxes come out of an exponential) the sum of plain squares
    hangs on the few largest, by chance.
    """
    worst_tempered: float = 0.0
    """The same of the call where its RMS is largest."""
    wrong: int = 0
    """Integers that differ, and rows whose largest number is another one."""
    decisions: int = 0
    turned: list[tuple[float, float]] = field(default_factory=list)
    """For rows whose largest number is another one: the lead that it lost, and its value."""
    tops: list[tuple[float, float]] = field(default_factory=list)
    """The largest number of each row, and the baseline's."""

    def add(self, ours: TensorFigures, theirs: TensorFigures) -> None:
        """Take in one call's sampled numbers."""
        if not OutputTensor("", theirs.path, theirs.dtype).floating:
            self.decisions += len(theirs.values)
            self.wrong += sum(a != b for a, b in zip(ours.values, theirs.values, strict=False))
            return
        pairs = [
            (a, b)
            for a, b in zip(ours.values, theirs.values, strict=False)
            if a is not None and b is not None
        ]
        apart = math.fsum((a - b) ** 2 for a, b in pairs)
        self.apart += apart
        self.size += math.fsum(b * b for _, b in pairs)
        self.ours += math.fsum(a * a for a, _ in pairs)
        self.count += len(pairs)
        self.single.append((apart, len(pairs)))
        self._temper(pairs)
        self.decisions += len(theirs.largest)
        turned = [a != b for a, b in zip(ours.largest, theirs.largest, strict=False)]
        self.wrong += sum(turned)
        self.turned += [
            (lead, top)
            for other, lead, top in zip(turned, theirs.margins, theirs.tops, strict=False)
            if other and lead is not None and top is not None
        ]
        self.tops += [
            (a, b)
            for a, b in zip(ours.tops, theirs.tops, strict=False)
            if a is not None and b is not None
        ]

    def _temper(self, pairs: Sequence[tuple[float, float]]) -> None:
        usual = math.sqrt(math.fsum(b * b for _, b in pairs) / len(pairs)) if pairs else 0.0
        parts = [_share(abs(a - b), abs(b) + usual) for a, b in pairs]
        square = math.fsum(part * part for part in parts)
        self.tempered += square
        if pairs:
            self.worst_tempered = max(self.worst_tempered, math.sqrt(square / len(pairs)))

    @property
    def relative_tempered(self) -> float:
        """The RMS of the tempered differences."""
        return math.sqrt(self.tempered / self.count) if self.count else 0.0

    @property
    def relative(self) -> float | None:
        """The relative RMS difference; None where nothing floating was compared."""
        return _ratio(self.apart, self.size) if self.count else None

    @property
    def worst_call(self) -> float:
        """The difference of the worst call, as a fraction of the RMS of all calls."""
        mean = self.size / self.count if self.count else 0.0
        return max((_ratio(a / n, mean) for a, n in self.single if n), default=0.0)

    @property
    def clearest_turn(self) -> float:
        """The clearest lead that a row lost, in parts of the RMS of all calls (or of a far larger
        row's own size).
        """
        usual = math.sqrt(self.size / self.count) if self.count else 0.0
        return max(
            (_share(lead, max(usual, abs(top) / FAR)) for lead, top in self.turned), default=0.0
        )

    @property
    def disagreeing(self) -> int:
        """`wrong` without the rows whose lead was smaller than the error of largest numbers.

        On a line of smooth pixels any error makes a neighbour the largest. An error that is large
        beside the scatter of largest numbers explains no more than a small one.
        """
        if not self.turned or not self.tops:
            return self.wrong
        error = root_mean_square([a - b for a, b in self.tops])
        middle = mean([b for _, b in self.tops])
        scatter = root_mean_square([b - middle for _, b in self.tops])
        least = SIGMAS * math.sqrt(2) * min(error, LARGEST_ERROR * scatter)
        return self.wrong - sum(lead <= least for lead, _ in self.turned)

    @property
    def disagreement(self) -> float:
        """The part of integers, or of rows' largest numbers, that differ."""
        return self.disagreeing / self.decisions if self.decisions else 0.0


def _share(apart: float, size: float) -> float:
    if not apart:
        return 0.0
    return apart / size if size else math.inf


def _ratio(apart: float, size: float) -> float:
    if not apart:
        return 0.0
    return math.sqrt(apart / size) if size else math.inf


def calls_of(ours: Evidence, theirs: Evidence) -> list[Call]:
    """The calls that both trials show, after as many training steps."""
    known = {(e.call, e.trained): e for e in theirs.outputs}
    return [(e, known[e.call, e.trained]) for e in ours.outputs if (e.call, e.trained) in known]


def of_group(ours: Evidence, theirs: Evidence, trained: bool) -> list[Call]:
    """The calls after some training step, or before any."""
    return [call for call in calls_of(ours, theirs) if bool(call[1].trained) is trained]


def varying_shapes(baselines: Sequence[Evidence]) -> set[OutputTensor]:
    """The tensors whose shape differs between calls of the script as it is on equal shapes.

    A detector returns as many boxes as its weights find, and those differ by rounding at least.
    """
    found: dict[tuple[OutputTensor, object], set[tuple[int, ...]]] = defaultdict(set)
    for event in (e for baseline in baselines for e in baseline.outputs):
        given = tuple(figures.shape for figures in event.inputs)
        for figures in event.outputs:
            found[_place(event, figures), given].add(figures.shape)
    return {place for (place, _), shapes in found.items() if len(shapes) > 1}


def without(varying: Collection[OutputTensor], calls: Sequence[Call]) -> list[Call]:
    """The calls; those after training without these tensors."""

    def fixed(e: OutputsEvent) -> OutputsEvent:
        kept = tuple(figures for figures in e.outputs if _place(e, figures) not in varying)
        return replace(e, outputs=kept) if e.trained else e

    return [(fixed(ours), fixed(theirs)) for ours, theirs in calls]


def _place(event: OutputsEvent, figures: TensorFigures) -> OutputTensor:
    return OutputTensor(event.module, figures.path, figures.dtype)


def differences(calls: Sequence[Call]) -> dict[OutputTensor, Difference]:
    """By place, over the calls whose outputs have one shape."""
    found: dict[OutputTensor, Difference] = defaultdict(Difference)
    for ours, theirs in calls:
        for mine, other in zip(ours.outputs, theirs.outputs, strict=False):
            if mine.shape == other.shape and mine.dtype == other.dtype:
                found[_place(theirs, other)].add(mine, other)
    return found
