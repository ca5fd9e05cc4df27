"""Who puts off the cast of a root module's outputs: knobs agree on it here."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class StandIn(Protocol):
    """Hands out a tensor of half precision as one of float32 that nothing has computed yet."""

    def fits(self, tensor: Tensor) -> bool:
        """True if this output of a root is handed out so; asking changes nothing."""

    def make(self, tensor: Tensor) -> Tensor:
        """The float32 tensor, whatever happens: a cast where it cannot be put off."""


STAND_INS: list[StandIn] = []
"""Each may hand out an output in place of its cast to float32; the first that fits is taken."""


def stand_in_for(tensor: Tensor) -> StandIn | None:
    """The stand-in that hands out this output of a root, None if the output is cast."""
    return next((stand_in for stand_in in STAND_INS if stand_in.fits(tensor)), None)
