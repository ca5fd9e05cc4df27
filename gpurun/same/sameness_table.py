"""The one table of the rule: every number that a person has set, with the data it was fitted to.

A distance is the same up to `k` × its floor, but no further than its ceiling, and in any case up to
its least value. A floor above the ceiling means that the distance is not compared. A floor that is
a standard error is no launch that went astray: there `k` × the floor may be above the ceiling.

`python scripts/fit_sameness.py` records launches of sound and falsifying changes
(`scripts/guard_cases.py`, `guard_bar.py`). It prints the range in which each row's least value must
lie: above what sound changes need, below what falsifying ones show.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

K = 2.0
"""Rounding differs from draw to draw by less than a factor of two in most trainings."""
K_WIDE = 3.0
"""Where a floor is few decisions, or one launch of ranks. Six of 160 classes were turned in a sound
change whose floor was one of 160: the root of six."""
SCATTER = 1.75
"""The floor of a mean of steps, in its own standard errors: launches under other seeds are few, and
steps are many."""
ENOUGH = 3
"""Fewer repeats, seeds or audited steps tell nothing of the spread between them."""
FEW = 16
"""Fewer samples of a pass do not tell whether it is shuffled, nor fewer sampled gradients of a
child of the model a direction."""
FEW_VALUES = 32
"""Fewer sampled gradients of one parameter do not tell a direction."""
FAR_ENOUGH = 0.8
"""A launch tells of a curve if it goes this part of its length."""
LEAST_SHARE = 0.5
"""Of a script that only infers, at least this part of the calls must be compared."""
PARTS = 4
"""A curve is compared in so many parts, each by its mean."""
SMALLEST = 0.05
"""Deviations of a curve are fractions of a part's mean, or of this much of its highest part."""
TREND = 0.6
"""Neighbours that resemble each other more than this (correlation) are a trend, and no noise."""
ROUNDING_NORM = 1e-5
"""Norms this small against the median of all norms are made of rounding alone."""
FEW_SIDES = 4
"""Fewer launches of a commit show too little of how far repeats are apart. Where they repeat each
other exactly, or all losses of one commit are finite and none of the other, there is no chance in
them, and two are enough."""
NOT_BY_CHANCE = 0.025
"""The one-sided p-value below which losses that are not finite in some launches are no chance."""


MOVED = 0.1
"""Once weights have parted, evaluations may differ by so much of the numbers' scatter, and in this
part of the decisions. Rounding that moves outputs further explains nothing."""


@dataclass(frozen=True)
class Row:
    """One kind's numbers, in the distance's unit."""

    label: str
    least: float = 0.0
    """The distance that is always the same. 0: equal or not the same; not compared where repeats
    differ."""
    highest: float | None = None
    """The ceiling: of a floor, and of what it explains. None: `K` times the least value."""
    k: float = K

    @property
    def ceiling(self) -> float:
        """The highest floor that explains anything, and the most that it explains."""
        return K * self.least if self.highest is None else self.highest


class Kind(enum.Enum):
    """What is compared: the rows of the table."""

    FINITE = Row("finite")
    SETTINGS = Row("settings")
    ORDER = Row("order")
    # Part of a pass. Shuffles have 0.01 of neighbours; `sorted_later` all.
    SHUFFLES = Row("shuffles", 0.1)
    SAMPLES = Row("samples")
    # Relative. Another model's output in half precision 0.005; a stale batch 1.5.
    INPUTS = Row("inputs", 0.02, 0.2)
    # Relative. Autocast to bf16 0.0015 (`evaluated`).
    FIRST_LOSS = Row("first loss", 0.03)
    # Length between unit vectors. GPT-124M compiled in bf16 0.02; rounding alone 1.1 in early and
    # 0.77 in late layers of ResNet-50, which are therefore not compared.
    DIRECTIONS = Row("gradient directions", 0.3)
    # Natural logarithms; twice the rate is 0.69. ResNet-50 compiled in bf16 0.10; `no_clipping`
    # 1.4.
    GRADIENTS = Row("gradient sizes", 0.22)
    # Natural logarithms. ResNet-50 compiled in bf16 0.175, GPT-124M 0.15; `doubled_updates` 0.69.
    UPDATES = Row("update sizes", 0.3)
    # Natural logarithms. An average that begins with the first weights 1.0.
    SIDE_UPDATES = Row("side updates", 0.53)
    FORM = Row("output form")
    # Relative to the scatter of the numbers. Another order of summation stays below 1e-4;
    # `wrong_outputs=scaled` 0.013.
    OUTPUTS = Row("outputs", 1e-4, MOVED)
    # Roots of shares; 0.1 is 1 %. A detector in bf16 0.03, `wrong_outputs=other integers` 0.88.
    DECISIONS = Row("output decisions", 0.1, 0.5, k=K_WIDE)
    EVALUATIONS = Row("evaluations", MOVED)
    EVALUATED_DECISIONS = Row("evaluation decisions", 0.32, k=K_WIDE)
    # Relative. Workers with other augmentations 0.11 in 16 steps; `smoothed labels` 0.04.
    CURVE = Row("loss curve", 0.02, 0.15)
    RUNAWAY = Row("runaway", K)
    # Relative. Ten times the rounding of float32; `scripts/simulate_training.py` has the error
    # rates: 1 gave 7.5 % of false alarms, 2 missed a quarter of doubled rates in a random walk.
    SIDES = Row("loss curves of two commits", 1e-6, 0.5, k=1.5)


RANKS = Row("ranks", 5e-5, 1e-2, k=K_WIDE)
"""Gradients of ranks beside those of one process (`--ddp`), relative. First gradients have no
floor: small networks, convolutions and transformers differ by 1e-7 to 2e-6. Of later steps the
floor is a launch that only rounds; eight steps of AdamW at a rate of 0.01 made 3e-4 of it. The
ceiling is set, not fitted: a sum whose later steps have no floor trains up to 1 % apart, and sizes
of updates may always differ so much. Adam makes steps of any size of a gradient that is zero but
for rounding (a bias of keys in attention)."""
LEAST_NORM = RANKS.ceiling
"""A gradient with less of the norm of all may be rounding (a bias of keys in attention): it is
compared with this share."""
SLOPE_OF_MEAN = 0.1
"""The largest distance of a mean's slopes from 1: the specification's 0.9 to 1.1, for token means,
class weights and contrastive losses. Set, not fitted, as all that follows from it."""
SLOPE_OF_SUM = SLOPE_OF_MEAN / 2
"""The largest distance of a sum's slopes from 1/N, as a part of it."""
MOST_APART = 2 * SLOPE_OF_MEAN
"""Ranks whose gradients are further apart from those of one process are not trained."""
LAST_STEPS = 2
"""A fault that begins late stays to the last step; shares that have more of something alternate, so
one step is too few. Set for a sum that begins with the fifth of six steps."""
LEAST_PART = 1e-3
"""The slope of a part of the model with less of the norm of all gradients says nothing. Set, not
fitted."""

FACTORS = frozenset({Kind.GRADIENTS, Kind.UPDATES, Kind.SIDE_UPDATES})
"""Kinds whose values are logarithms of a factor."""
SHARES = frozenset({Kind.DECISIONS, Kind.EVALUATED_DECISIONS})
"""Kinds whose values are roots of shares."""
WITHOUT_UNIT = frozenset({Kind.SHUFFLES, Kind.RUNAWAY})
"""Kinds whose values tell a user nothing."""
BY_PLACE = FACTORS | {Kind.SAMPLES, Kind.DIRECTIONS}
"""Kinds that are compared if any place is: repeats may hand out other images and the same labels;
rounding turns the gradients of a deep network's early layers before its first step. Of others every
place must be, and of the loss curve the whole: steps scatter more in a part."""
OF_STEPS = FACTORS | {Kind.FIRST_LOSS, Kind.INPUTS, Kind.DIRECTIONS}
"""Kinds that only say that nothing is lost where the model drew other random numbers; launches
whose model draws none are compared by them alone."""
AFTER_STEPS = frozenset({Kind.EVALUATIONS, Kind.EVALUATED_DECISIONS})
"""Kinds that say nothing where weights have parted, for other random numbers were drawn."""
OF_OUTPUTS = frozenset({Kind.OUTPUTS, Kind.DECISIONS})
"""Kinds that say nothing of a script that only infers if its own outputs are random."""
OF_TRAINING = frozenset({Kind.FINITE, Kind.SAMPLES, Kind.RUNAWAY})
"""All that a change of the training (batch size, learning rate) must leave the same."""
