"""`--ddp` knows whether a backward pass is of the batch that a loader handed out last."""

from __future__ import annotations

import pytest

from gpurun.runtime.parallel.feeding import Feeding


class Part:
    """What stands for a model, an optimizer or a loader."""


def course(words: str) -> Feeding:
    """A training by its events: a letter for a batch of that iterator, `.` for a backward pass,
    `|` for the end of the iterator before, `o` for a new optimizer, `l` for a new loader.
    """
    feeding = Feeding()
    feeding.meet(PART, feeds=True)
    last, new = "", []
    for word in words:
        if word == ".":
            feeding.look()
            feeding.went_back()
        elif word == "|":
            feeding.ended(ord(last))
        elif word in "ol":
            new.append(Part())
            feeding.meet(new[-1], feeds=word == "l")
        else:
            feeding.handed(ord(word))
            last = word
    return feeding


PART = Part()


@pytest.mark.parametrize(
    "words",
    [
        "a.a.a.|b.b.b.|",
        "a..a..a..|b..b..",  # two passes of each batch: a GAN
        "pa.a.a.",  # a look at a first batch
        "a.a.a.|",
        "aaaa|....lb.b.b.",  # after it was not so
    ],
)
def test_batches_that_are_trained_on_as_they_come(words: str) -> None:
    assert course(words).regular


@pytest.mark.parametrize(
    "words",
    [
        "ab..ab..",  # loaders that are zipped
        "aaaa|....",  # `list(loader)`
        "aa.a.a.",  # one ahead
        "aa.oa.a.",
        "aa.la.a.",  # while another loader is met
        "a.a.|.",  # `cycle(loader)`: from its memory
        "a.aa.",  # left out
    ],
)
def test_batches_that_are_not(words: str) -> None:
    assert not course(words).regular


def test_whatever_newly_takes_part_begins_a_training() -> None:
    feeding, loader = course("aa.a."), Part()
    assert (feeding.begun, feeding.regular) == (1, False)
    feeding.meet(PART)
    assert (feeding.begun, feeding.regular) == (1, False)
    feeding.meet(loader, feeds=True)
    assert (feeding.begun, feeding.regular) == (2, True)
