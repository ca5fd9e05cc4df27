"""The padding of a batch of tokens, by its rows' ends."""

from __future__ import annotations

import pytest
import torch

from gpurun.runtime.observe.model_traits import is_mask, padding_share


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([[5, 6, 0, 0], [7, 0, 0, 0], [1, 2, 3, 4]], 5 / 12),
        ([[5, 6, 7, 8], [1, 2, 3, 4]], 0.0),
        ([[5, 6, 7, 0], [1, 2, 3, 0]], 0.0),
        ([[0, 0, 0, 0], [0, 0, 0, 0]], 1.0),
        ([[5, 0, 7, 9], [1, 2, 9, 9]], 0.25),
    ],
    ids=["ragged", "full", "one token of an end", "empty", "a run in one row"],
)
def test_the_runs_that_rows_end_with_are_padding(rows: list[list[int]], share: float) -> None:
    assert padding_share(torch.tensor(rows)) == pytest.approx(share)


def test_a_mask_is_told_from_token_types() -> None:
    assert is_mask(torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert is_mask(torch.tensor([[False, True], [True, True]]))
    assert not is_mask(torch.tensor([[0, 1, 0]]))
    assert not is_mask(torch.tensor([[1, 2, 0]]))
