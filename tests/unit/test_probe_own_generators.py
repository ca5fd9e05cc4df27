"""Which draws of a script come from a generator of its own, alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

from gpurun.runtime.probe.whole_batch_rng import WholeBatchRNG

ROWS = 8
OWN = torch.Generator()


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (lambda: torch.randn(ROWS, 3, generator=OWN), True),
        (lambda: torch.empty(ROWS, 3).normal_(generator=OWN), True),
        (lambda: torch.bernoulli(torch.full((ROWS,), 0.5), generator=OWN), True),
        (lambda: torch.randn(ROWS, 3), False),
        (lambda: torch.randn(ROWS, 3, generator=torch.default_generator), False),
        (lambda: torch.randint(0, 5, (1,), generator=OWN), False),  # one for the whole batch
        (lambda: next(iter(DataLoader([0] * 20, shuffle=True))), False),  # torch's own generator
    ],
)
def test_only_draws_for_each_sample_from_the_scripts_own_generator_are_told(
    draw: Callable[[], object], told: bool
) -> None:
    drawing = WholeBatchRNG(0, 1)
    drawing.own = drawing.total = ROWS
    with drawing:
        draw()
    assert drawing.own_generator.startswith("test_probe_own_generators.py:") is told
