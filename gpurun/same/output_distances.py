"""What root modules return without gradients: inference, and evaluations of a training.

Calls are compared by number, where both launches were given the same inputs. Calls before any
training step are `OUTPUTS`, those after some are `EVALUATIONS`: their weights have parted by then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpurun.records.messages.training_events import OutputsEvent, TensorFigures
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import Distance, Distances, Name, exact, relative
from gpurun.same.sameness_table import K, Kind
from gpurun.stats.descriptive import mean, root_mean_square

RESOLUTION = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
"""The machine epsilon by type."""
KINDS = {
    False: (Kind.INPUTS, Kind.OUTPUTS, Kind.DECISIONS),
    True: (Kind.EVALUATIONS, Kind.EVALUATIONS, Kind.EVALUATED_DECISIONS),
}
"""What inputs, numbers and decisions are compared as: of calls before training steps, and after."""

Call = tuple[OutputsEvent, OutputsEvent]
"""A call in our launch, and the same call in the other."""


def output_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """Form of all shared calls, then their inputs, numbers and decisions."""
    calls = _shared(ours, theirs)
    if not calls:
        lost = theirs.outputs and ours.forward_only
        return exact(Kind.FORM, "calls", "no output was seen") if lost else {}
    varying = _varying(theirs)
    found = _form(calls, varying)
    for trained in KINDS:
        group = [call for call in calls if bool(call[1].trained) is trained]
        found |= _call_inputs(group, KINDS[trained][0])
        found |= _numbers(_on_equal_inputs(group), trained, varying if trained else set())
    return found


def compared_calls(ours: LaunchAudit, theirs: LaunchAudit) -> tuple[int, int]:
    """How many calls both launches have on equal inputs, and how many the other one has."""
    return len(_on_equal_inputs(_shared(ours, theirs))), len(theirs.outputs)


def unreadable(launch: LaunchAudit) -> str | None:
    """Why outputs of a launch cannot be compared with anything; None if they can."""
    figures = [figure for event in launch.outputs for figure in event.outputs]
    if not figures:
        unseen = "no call of a model without gradients was seen"
        return "the model returns no tensors" if launch.outputs else unseen
    bad = next((f for f in figures if not f.values and 0 not in f.shape), None)
    return None if bad is None else f"{bad.path or 'the output'} ({bad.dtype}) cannot be read"


@dataclass(frozen=True)
class OutputTensor:
    """A tensor of a module's output: the module's class, where it stands, and its type."""

    module: str
    path: str
    dtype: str

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
    late = [ours.call for ours, theirs in calls if ours.overwritten and theirs.overwritten is False]
    lost = f"the output of call {late[0]} held other numbers after the next call" if late else None
    reasons = {
        "kind": next((r for call in calls if (r := _other_kind(*call, varying))), None),
        "overwritten": lost,
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


def _zeros(calls: Sequence[Call]) -> str | None:
    """A floating tensor that is zero in all calls, and not in the other launch."""
    zero: dict[OutputTensor, tuple[bool, bool]] = defaultdict(lambda: (True, True))
    for place, mine, other in _tensors(calls):
        if _floating(other.dtype):
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


def _call_inputs(calls: Sequence[Call], kind: Kind) -> Distances:
    if not calls:
        return {}
    apart, number = max((_input_distance(*call), -place) for place, call in enumerate(calls))
    worst = calls[-number][1]
    said = f"call {worst.call} of {worst.module} is given other inputs than in the baseline"
    return {Name(kind, "inputs of calls"): Distance(apart, said)}


def _on_equal_inputs(calls: Sequence[Call]) -> list[Call]:
    """After training steps a recurrent state was computed by weights that have parted."""
    least = {trained: kinds[0].value.least for trained, kinds in KINDS.items()}
    return [call for call in calls if _input_distance(*call) <= least[bool(call[1].trained)]]


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
    pairs = _finite_pairs(ours.values, theirs.values)
    size = root_mean_square([b for _, b in pairs])
    return relative(root_mean_square([a - b for a, b in pairs]), size)


# -- numbers ---------------------------------------------------------------------------------------


def _tensors(calls: Sequence[Call]) -> Iterator[tuple[OutputTensor, TensorFigures, TensorFigures]]:
    """The tensors of one type that both launches return, with the place of each."""
    for ours, theirs in calls:
        for mine, other in zip(ours.outputs, theirs.outputs, strict=False):
            if mine.dtype == other.dtype:
                yield _tensor(theirs, other), mine, other


@dataclass
class _Tensor:
    """What calls show of one tensor, added up."""

    shares: list[list[float]] = field(default_factory=list)
    """By call: differences of numbers, each as a fraction of its own distance from the mean."""
    norms: list[tuple[float, float]] = field(default_factory=list)
    """Norms, or sums of integers, on both sides: what sampling missed."""
    turned: list[bool] = field(default_factory=list)
    """Of integers, and of rows' largest numbers: is it another one?"""
    leads: list[float] = field(default_factory=list)
    """The leads that largest numbers lost."""
    tops: list[tuple[float, float]] = field(default_factory=list)

    def add(self, ours: TensorFigures, theirs: TensorFigures) -> None:
        self.norms += _finite_pairs([ours.norm], [theirs.norm])
        if not _floating(theirs.dtype):
            self.turned += [a != b for a, b in zip(ours.values, theirs.values, strict=False)]
            return
        self.shares.append(list(_shares(_finite_pairs(ours.values, theirs.values))))
        turned = [a != b for a, b in zip(ours.largest, theirs.largest, strict=False)]
        self.turned += turned
        leads = zip(turned, theirs.margins, strict=False)
        self.leads += [lead for other, lead in leads if other and lead is not None]
        self.tops += _finite_pairs(ours.tops, theirs.tops)

    @property
    def disagreement(self) -> float:
        """The part of decisions that differ by more than the error of the numbers explains."""
        wrong = sum(self.turned)
        if self.leads and self.tops:
            error = root_mean_square([a - b for a, b in self.tops])
            middle = mean([b for _, b in self.tops])
            scatter = root_mean_square([b - middle for _, b in self.tops])
            error = min(error, Kind.OUTPUTS.value.ceiling * scatter)
            least = K * math.sqrt(2) * error  # a row changes by chance if it led by no more
            wrong -= sum(lead <= least for lead in self.leads)
        return wrong / len(self.turned)


def _finite_pairs(
    ours: Sequence[float | None], theirs: Sequence[float | None]
) -> list[tuple[float, float]]:
    pairs = zip(ours, theirs, strict=False)
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


def _numbers(calls: Sequence[Call], trained: bool, without: set[OutputTensor]) -> Distances:
    tensors: dict[OutputTensor, _Tensor] = defaultdict(_Tensor)
    for place, mine, other in _tensors(calls):
        if mine.shape == other.shape and place not in without:
            tensors[place].add(mine, other)
    found: Distances = {}
    _, numbers, decisions = KINDS[trained]
    for place, seen in tensors.items():
        for where, value, said in _deviations(place, seen, trained):
            found[Name(numbers, f"{place}{where}")] = Distance(
                value, said, resolution=RESOLUTION.get(place.dtype, 0.0)
            )
        if seen.turned:
            part = seen.disagreement
            said = f"{place} agrees in {1 - part:.1%} only"
            # the root, for a share's standard error is then the same for small and large shares
            found[Name(decisions, str(place))] = Distance(math.sqrt(part), said)
    return found


def _deviations(
    place: OutputTensor, seen: _Tensor, trained: bool
) -> Iterator[tuple[str, float, str]]:
    """Of a tensor's numbers in all calls, in the worst one, and of its norm: how far, in words."""
    shares = [share for call in seen.shares for share in call]
    if shares:
        apart, worst = root_mean_square(shares), max(map(root_mean_square, seen.shares))
        yield "", apart, f"{place} deviates by {apart:.2%}"
        yield ", worst call", worst, f"{place} deviates by {worst:.2%} in one call"
    norms = ((relative(abs(a - b), abs(b)), a, b) for a, b in seen.norms)
    off, mine, other = max(norms, key=lambda norm: norm[0], default=(0.0, 0.0, 0.0))
    # after training steps a few integers may differ, and their sum by any part
    if shares or (off and not trained):
        said = f"the norm of {place} deviates by {off:.2%}"
        if not _floating(place.dtype):
            said = f"{place} adds up to {mine:g} instead of {other:g}"
        yield ", as a whole", off, said
