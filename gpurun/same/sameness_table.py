"""The one table of the rule: k, least value and ceiling of each kind of distance.

A distance is the same up to `k` × its floor, but no further than its ceiling, and in any case up to
its least value. A floor above the ceiling explains nothing: beyond the least value the distance is
then not compared.

`python scripts/fit_sameness.py` prints what each row lets through and refuses, of recorded launches
of sound and falsifying changes (`scripts/guard_cases.py`, `guard_bar.py`), with the margins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpurun.same.floors import Floor
from gpurun.same.named_distance import Distance, Kind, Name

K = 2.0
"""Rounding differs from draw to draw by less than a factor of two in most trainings."""
SCATTER = 1.75
"""Where random numbers were drawn anew, a mean of steps has a floor of so many of its own standard
errors: launches under other seeds are few, and steps are many."""
LEAST_SHARE = 0.5
"""Of a script that only infers, at least this part of the calls must be compared."""


@dataclass(frozen=True)
class Row:
    """One kind's numbers, in the distance's unit."""

    least: float
    """The distance that is always the same."""
    highest: float | None = None
    """The ceiling: of a floor, and of what it explains. None: `K` times the least value."""
    k: float = K
    drawn: float | None = None
    """The least value where random numbers were drawn anew. None: as otherwise."""
    scatters: bool = False
    """True if the scatter of steps is a floor in any case: two curves of one training come apart
    by chance where rounding is multiplied."""

    @property
    def ceiling(self) -> float:
        """The highest floor that explains anything, and the most that it explains."""
        return K * self.least if self.highest is None else self.highest

    def bound(self, distance: Distance, floor: Floor | None, *, drawn: bool) -> float:
        """The largest distance that is the same."""
        least = self.least if self.drawn is None or not drawn else self.drawn
        return max(least, distance.resolution, self.noise(distance, floor, drawn=drawn))

    def noise(self, distance: Distance, floor: Floor | None, *, drawn: bool) -> float:
        """The part of the bound that launches of the same training show."""
        scatter = SCATTER * distance.error if drawn or self.scatters else 0.0
        explained = 0.0 if floor is None or floor.value > self.ceiling else floor.value
        return max(min(self.k * explained, self.ceiling), self.k * scatter)


EXACT = Row(0.0)
"""Equal or not the same; where repeats differ, not compared."""

TABLE: dict[Kind, Row] = {
    Kind.FINITE: EXACT,
    Kind.SETTINGS: EXACT,
    Kind.ORDER: EXACT,
    Kind.FED: EXACT,
    Kind.FORM: EXACT,
    # Part of the samples. A data set that replaces a broken one of 64 changes 0.02 to 0.05 of them,
    # `shuffled_labels` all.
    Kind.SAMPLES: Row(0.0, 0.25, k=4.0),
    # Odds of being another sample. Fetched twice 0.09 (`images`), in workers 0.08;
    # `shuffled_images` infinity.
    Kind.LIKENESS: Row(1.0, 8.0),
    # Standard errors. Sound workers 0.4; `no_transforms` 16.
    Kind.VARIETY: Row(3.5),
    # Part of a pass. Shuffles have 0.01 of neighbours; `sorted_later` all.
    Kind.SHUFFLES: Row(0.1),
    # Relative. Another model's output in half precision 0.005; a stale batch 1.5.
    Kind.INPUTS: Row(0.02, 0.2),
    # Relative. Autocast to bf16 0.0015 (`evaluated`).
    Kind.FIRST_LOSS: Row(0.03),
    # Length between unit vectors. GPT-124M compiled in bf16 0.02; rounding alone 1.1 in early and
    # 0.77 in late layers of ResNet-50, which are therefore not compared. Drawn anew: sound up to
    # 0.99 (`images`), `rolled_labels` 1.43.
    Kind.DIRECTIONS: Row(0.3, drawn=1.35),
    # Natural logarithms; twice the rate is 0.69. ResNet-50 compiled in bf16 0.10; `no_clipping`
    # 1.4. Drawn anew: sound 0.06; trainings in which all of seven stayed below 0.53.
    Kind.GRADIENTS: Row(0.22, drawn=0.53),
    # Natural logarithms. ResNet-50 compiled in bf16 0.175, GPT-124M 0.15; `doubled_updates` 0.69,
    # and 0.58 beside other augmentations.
    Kind.UPDATES: Row(0.3, drawn=0.53),
    # Natural logarithms. An average that begins with the first weights 1.0.
    Kind.SIDE_UPDATES: Row(0.53, drawn=1.4),
    # Relative to the scatter of the numbers. Another order of summation stays below 1e-4;
    # `wrong_outputs=scaled` 0.013.
    Kind.OUTPUTS: Row(1e-4, 0.1),
    Kind.EVALUATIONS: Row(0.1),
    # Roots of shares; 0.1 is 1 %. A detector in bf16 0.03, `wrong_outputs=other integers` 0.88. Six
    # of 160 classes were turned in a sound change whose floor was one of 160: the root of six.
    Kind.DECISIONS: Row(0.1, 0.5, k=3.0),
    Kind.EVALUATED_DECISIONS: Row(0.32, k=3.0),
    # Relative. Rounding explains no more than 15 %. Workers with other augmentations 0.11 in 16
    # steps; `smoothed labels` 0.04.
    Kind.CURVE: Row(0.02, 0.15, scatters=True),
    Kind.RUNAWAY: Row(2.0),
    # Relative. Ten times the rounding of float32; `scripts/simulate_training.py` has the error
    # rates: 1 gave 7.5 % of false alarms, 2 missed a quarter of doubled rates in a random walk.
    Kind.SIDES: Row(1e-6, 0.5, k=1.5),
}

BY_PLACE = frozenset(
    {Kind.SAMPLES, Kind.DIRECTIONS, Kind.GRADIENTS, Kind.UPDATES, Kind.SIDE_UPDATES}
)
"""Kinds that are compared if any place is: images are random and labels are not; of a deep network
before its first step, rounding turns the gradients of early layers. Of others every place must
be."""
FACTORS = frozenset({Kind.GRADIENTS, Kind.UPDATES, Kind.SIDE_UPDATES})
"""Kinds whose values are logarithms of a factor."""
SHARES = frozenset({Kind.DECISIONS, Kind.EVALUATED_DECISIONS})
"""Kinds whose values are roots of shares."""
WITHOUT_UNIT = frozenset({Kind.LIKENESS, Kind.VARIETY, Kind.SHUFFLES, Kind.RUNAWAY})
"""Kinds whose values tell a user nothing."""
CURVES = frozenset({Kind.CURVE})
"""Kinds that are averaged over the candidate's launches, with their sign."""


def shown(kind: Kind, value: float) -> str:
    """A bound, or a floor, as the reason of a rejection shows it."""
    if kind in FACTORS:
        return f"×{math.exp(value):.2f}"
    if kind in SHARES:
        return f"{1 - value * value:.2%}"
    if kind is Kind.DIRECTIONS:
        return f"cosine {1 - value * value / 2:.2f}"
    return f"{value:.2%}" if value < 0.01 else f"{value:.1%}"


def scaled(distance: Distance, bound: float) -> float:
    """The distance in units of its bound: the same up to 1."""
    if not distance.size:
        return 0.0
    return distance.size / bound if bound else math.inf


def too_high(name: Name, floor: Floor | None) -> bool:
    """True if a floor is above its ceiling."""
    return floor is not None and floor.value > TABLE[name.kind].ceiling
