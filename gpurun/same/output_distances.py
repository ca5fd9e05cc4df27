"""What root modules return without gradients: inference, and evaluations of a training.

Calls are compared by number, where both launches were given the same inputs. Calls before any
training step are `OUTPUTS`, those after some are `EVALUATIONS`: their weights have parted by then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpurun.records.messages.training_events import OutputsEvent, TensorFigures
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import Distance, Distances, Kind, Name, exact, relative
from gpurun.same.sameness_table import TABLE, K
from gpurun.stats.descriptive import mean, root_mean_square

RESOLUTION = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
"""The machine epsilon by type."""

Call = tuple[OutputsEvent, OutputsEvent]
"""A call in our launch, and the same call in the other."""


def output_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """Form of all shared calls, then their inputs, numbers and decisions."""
    calls = _shared(ours, theirs)
    if not calls:
        lost = "no output was seen" if theirs.outputs and ours.forward_only else None
        return exact(Kind.FORM, "calls", lost) if lost else {}
    varying = _varying(theirs)
    found = {**_form(calls, varying), **_call_inputs(calls)}
    alike = _on_equal_inputs(calls)
    for kinds, trained in ((_UNTRAINED, False), (_TRAINED, True)):
        group = [call for call in alike if bool(call[1].trained) is trained]
        found |= _numbers(kinds, group, varying if trained else set())
    return found


_UNTRAINED = (Kind.OUTPUTS, Kind.DECISIONS)
_TRAINED = (Kind.EVALUATIONS, Kind.EVALUATED_DECISIONS)


def compared_calls(ours: LaunchAudit, theirs: LaunchAudit) -> tuple[int, int]:
    """How many calls both launches have on equal inputs, and how many the other one has."""
    return len(_on_equal_inputs(_shared(ours, theirs))), len(theirs.outputs)


def unreadable(launch: LaunchAudit) -> str | None:
    """Why outputs of a launch cannot be compared with anything; None if they can."""
    if not launch.outputs:
        return "no call of a model without gradients was seen"
    if not any(event.outputs for event in launch.outputs):
        return "the model returns no tensors"
    figures = (figure for event in launch.outputs for figure in event.outputs)
    unread = next((f for f in figures if not f.values and 0 not in f.shape), None)
    if unread is not None:
        return f"{unread.path or 'the output'} ({unread.dtype}) cannot be read"
    return None


@dataclass(frozen=True)
class OutputTensor:
    """A tensor of a module's output: the module's class, where it stands, and its type."""

    module: str
    path: str
    dtype: str

    @property
    def resolution(self) -> float:
        """The relative difference of neighbouring numbers of this type."""
        return RESOLUTION.get(self.dtype, 0.0)

    def __str__(self) -> str:
        where = f"output {self.path} of {self.module}"
        return where if self.path else f"the output of {self.module}"


def _floating(dtype: str) -> bool:
    return "float" in dtype or "complex" in dtype


def _tensor(event: OutputsEvent, figures: TensorFigures) -> OutputTensor:
    return OutputTensor(event.module, figures.path, figures.dtype)


def _shared(ours: LaunchAudit, theirs: LaunchAudit) -> list[Call]:
    """The calls that both launches show, after as many training steps."""
    known = {(e.call, e.trained): e for e in theirs.outputs}
    return [(e, known[e.call, e.trained]) for e in ours.outputs if (e.call, e.trained) in known]


def _varying(launch: LaunchAudit) -> set[OutputTensor]:
    """The tensors whose shape differs between calls on equal shapes: as many boxes as were found.

    Rounding alone moves such a shape once weights have trained.
    """
    found: dict[tuple[OutputTensor, object], set[tuple[int, ...]]] = defaultdict(set)
    for event in launch.outputs:
        given = tuple(figures.shape for figures in event.inputs)
        for figures in event.outputs:
            found[_tensor(event, figures), given].add(figures.shape)
    return {place for (place, _), shapes in found.items() if len(shapes) > 1}


# -- form ------------------------------------------------------------------------------------------


def _form(calls: Sequence[Call], varying: set[OutputTensor]) -> Distances:
    reasons = {
        "kind": next((r for call in calls if (r := _other_kind(*call, varying))), None),
        "overwritten": next((r for call in calls if (r := _overwritten(*call))), None),
        "zeros": _zeros(calls),
        "draws": _training_mode(calls, "draws random numbers", "draws"),
        "buffers": _training_mode(calls, "changes its buffers", "moved"),
    }
    found: Distances = {}
    for place, reason in reasons.items():
        found |= exact(Kind.FORM, place, reason)
    return found


def _other_kind(ours: OutputsEvent, theirs: OutputsEvent, varying: set[OutputTensor]) -> str | None:
    """Other containers, types, shapes, or numbers that are not finite."""
    if ours.structure != theirs.structure or len(ours.outputs) != len(theirs.outputs):
        return f"{theirs.module} returns {ours.structure} instead of {theirs.structure}"
    sized = [t.shape for t in ours.inputs] == [t.shape for t in theirs.inputs]
    for mine, other in zip(ours.outputs, theirs.outputs, strict=True):
        place = _tensor(theirs, other)
        if mine.dtype != other.dtype:
            return f"{place} is {mine.dtype} instead of {other.dtype}"
        free = theirs.trained and place in varying
        if sized and mine.shape != other.shape and not free:
            return f"{place} has the shape {list(mine.shape)} instead of {list(other.shape)}"
        if sized and mine.not_finite > other.not_finite:
            return f"{place} is not finite in call {ours.call}"
    return None


def _overwritten(ours: OutputsEvent, theirs: OutputsEvent) -> str | None:
    if ours.overwritten and theirs.overwritten is False:
        return f"the output of call {ours.call} held other numbers after the next call"
    return None


def _zeros(calls: Sequence[Call]) -> str | None:
    """A floating tensor that is zero in all calls, and not in the other launch."""
    zero: dict[OutputTensor, tuple[bool, bool]] = defaultdict(lambda: (True, True))
    for ours, theirs in calls:
        for mine, other in zip(ours.outputs, theirs.outputs, strict=False):
            if _floating(other.dtype) and mine.dtype == other.dtype:
                place = _tensor(theirs, other)
                a, b = zero[place]
                zero[place] = a and not any(mine.values), b and not any(other.values)
    return next((f"{place} is zero" for place, (a, b) in zero.items() if a and not b), None)


def _training_mode(calls: Sequence[Call], what: str, field_name: str) -> str | None:
    """Dropout, or batch statistics, that the other launch leaves out of calls without gradients."""
    pairs = [(getattr(a, field_name), getattr(b, field_name)) for a, b in calls]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if known and not any(b for _, b in known) and 2 * sum(a for a, _ in known) > len(known):
        return f"{calls[0][1].module} {what} in calls without gradients"
    return None


# -- inputs ----------------------------------------------------------------------------------------


def _call_inputs(calls: Sequence[Call]) -> Distances:
    found: Distances = {}
    for kind, trained in ((Kind.INPUTS, False), (Kind.EVALUATIONS, True)):
        group = [call for call in calls if bool(call[1].trained) is trained]
        if group:
            worst = max(group, key=lambda call: _input_distance(*call))
            which = f"call {worst[1].call} of {worst[1].module}"
            said = f"{which} is given other inputs than in the baseline"
            found[Name(kind, "inputs of calls")] = Distance(_input_distance(*worst), said)
    return found


def _on_equal_inputs(calls: Sequence[Call]) -> list[Call]:
    """After training steps a recurrent state was computed by weights that have parted."""
    limits = (TABLE[Kind.INPUTS].least, TABLE[Kind.EVALUATIONS].least)
    return [call for call in calls if _input_distance(*call) <= limits[bool(call[1].trained)]]


def _input_distance(ours: OutputsEvent, theirs: OutputsEvent) -> float:
    if len(ours.inputs) != len(theirs.inputs):
        return math.inf
    pairs = zip(ours.inputs, theirs.inputs, strict=True)
    return max((_apart(a, b) for a, b in pairs), default=0.0)


def _apart(ours: TensorFigures, theirs: TensorFigures) -> float:
    """Of a tensor: the relative RMS difference; infinity for another form, or other integers."""
    if ours == theirs:
        return 0.0
    same_form = (ours.path, ours.dtype, ours.shape) == (theirs.path, theirs.dtype, theirs.shape)
    if not same_form or not _floating(theirs.dtype):
        return math.inf
    pairs = _finite_pairs(ours, theirs)
    size = root_mean_square([b for _, b in pairs])
    return relative(root_mean_square([a - b for a, b in pairs]), size)


# -- numbers ---------------------------------------------------------------------------------------


@dataclass
class _Tensor:
    """What calls show of one tensor, added up."""

    shares: list[float] = field(default_factory=list)
    """Differences of numbers, each as a fraction of its own distance from the mean."""
    worst: float = 0.0
    """Their RMS in the worst call."""
    norm: float = 0.0
    """The largest relative difference of norms, or of sums of integers: what sampling missed."""
    norms: tuple[float, float] = (0.0, 0.0)
    wrong: int = 0
    decisions: int = 0
    """Integers, and rows' largest numbers: how many, and how many of them differ."""
    leads: list[float] = field(default_factory=list)
    """The leads that largest numbers lost."""
    tops: list[tuple[float, float]] = field(default_factory=list)

    def add(self, ours: TensorFigures, theirs: TensorFigures) -> None:
        if ours.norm is not None and theirs.norm is not None:
            apart = relative(abs(ours.norm - theirs.norm), abs(theirs.norm))
            if apart > self.norm:
                self.norm, self.norms = apart, (ours.norm, theirs.norm)
        if not _floating(theirs.dtype):
            self.decisions += len(theirs.values)
            self.wrong += sum(a != b for a, b in zip(ours.values, theirs.values, strict=False))
            return
        shares = list(_shares(_finite_pairs(ours, theirs)))
        self.shares += shares
        self.worst = max(self.worst, root_mean_square(shares))
        turned = [a != b for a, b in zip(ours.largest, theirs.largest, strict=False)]
        self.decisions += len(turned)
        self.wrong += sum(turned)
        leads = zip(turned, theirs.margins, strict=False)
        self.leads += [lead for other, lead in leads if other and lead is not None]
        tops = zip(ours.tops, theirs.tops, strict=False)
        self.tops += [(a, b) for a, b in tops if a is not None and b is not None]

    @property
    def disagreement(self) -> float:
        """The part of decisions that differ by more than the error of the numbers explains."""
        wrong = self.wrong
        if self.leads and self.tops:
            error = root_mean_square([a - b for a, b in self.tops])
            middle = mean([b for _, b in self.tops])
            scatter = root_mean_square([b - middle for _, b in self.tops])
            error = min(error, TABLE[Kind.OUTPUTS].ceiling * scatter)
            least = K * math.sqrt(2) * error  # a row changes by chance if it led by no more
            wrong -= sum(lead <= least for lead in self.leads)
        return wrong / self.decisions if self.decisions else 0.0


def _finite_pairs(ours: TensorFigures, theirs: TensorFigures) -> list[tuple[float, float]]:
    pairs = zip(ours.values, theirs.values, strict=False)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _shares(pairs: Sequence[tuple[float, float]]) -> Iterable[float]:
    """Differences as fractions of the number's own distance from the mean, or of the usual one.

    Neither an offset nor a few far larger numbers, whose errors are larger too, decide then.
    """
    if not pairs:
        return
    values = [b for _, b in pairs]
    middle = mean(values)
    usual = root_mean_square([b - middle for b in values]) or root_mean_square(values)
    for a, b in pairs:
        yield relative(abs(a - b), max(abs(b - middle), usual))


def _numbers(
    kinds: tuple[Kind, Kind], calls: Sequence[Call], without: set[OutputTensor]
) -> Distances:
    tensors: dict[OutputTensor, _Tensor] = defaultdict(_Tensor)
    for ours, theirs in calls:
        for mine, other in zip(ours.outputs, theirs.outputs, strict=False):
            place = _tensor(theirs, other)
            if mine.shape == other.shape and mine.dtype == other.dtype and place not in without:
                tensors[place].add(mine, other)
    found: Distances = {}
    numbers, decisions = kinds
    for place, seen in tensors.items():
        if seen.shares:
            apart = root_mean_square(seen.shares)
            said = f"{place} deviates by {apart:.2%}"
            found[Name(numbers, str(place))] = Distance(apart, said, resolution=place.resolution)
            once = f"{place} deviates by {seen.worst:.2%} in one call"
            found[Name(numbers, f"{place}, worst call")] = Distance(
                seen.worst, once, resolution=place.resolution
            )
        # after training steps a few integers may differ, and their sum by any part
        if seen.shares or (seen.norm and numbers is Kind.OUTPUTS):
            said = f"the norm of {place} deviates by {seen.norm:.2%}"
            if not _floating(place.dtype):
                said = f"{place} adds up to {seen.norms[0]:g} instead of {seen.norms[1]:g}"
            found[Name(numbers, f"{place}, as a whole")] = Distance(
                seen.norm, said, resolution=place.resolution
            )
        if seen.decisions:
            part = seen.disagreement
            said = f"{place} agrees in {1 - part:.1%} only"
            # the root, for a share's standard error is then the same for small and large shares
            found[Name(decisions, str(place))] = Distance(math.sqrt(max(0.0, part)), said)
    return found
