"""Which loaders train, by the keys of those that trained in an earlier launch."""

from __future__ import annotations

import pytest

from gpurun.records.messages.traits import feeds_training


@pytest.mark.parametrize(
    ("key", "known", "trains"),
    [
        ("train.py:9#0", {"train.py:9#0"}, True),
        ("train.py:9#1", {"train.py:9#0"}, False),  # the second may evaluate
        ("train.py:9#7", {"train.py:9#0", "train.py:9#1"}, True),  # built anew for each epoch
        ("train.py:9#1", {"train.py:9#0", "train.py:9#2"}, False),  # one to train, one to evaluate
        ("train.py:9#4", {"train.py:9#0", "train.py:9#2"}, False),
        ("train.py:12#2", {"train.py:9#0", "train.py:9#1"}, False),
    ],
)
def test_a_loader_that_is_built_in_each_epoch_trains_in_all_of_them(
    key: str, known: set[str], trains: bool
) -> None:
    """Seen: workers in the three epochs of the first trial, and none in those after them."""
    assert feeds_training(key, known) is trains
