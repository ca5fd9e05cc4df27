"""Who copies the outputs of root modules, and who puts off their cast: knobs agree on it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class StandIn(Protocol):
    """Hands out a tensor of half precision as one of float32 that nothing has computed yet."""

    def fits(self, tensor: Any) -> bool:
        """Whether this output of a root is handed out so; nothing is changed by asking."""

    def make(self, tensor: Any) -> Any:
        """The float32 tensor, whatever happens: a cast where it cannot be put off."""


COPIED_LATER: list[Callable[[Any], bool]] = []
"""Each tells whether a knob copies this output of a root after those before it had it in hand."""
STAND_INS: list[StandIn] = []
"""What is handed out in place of a cast to float32, where it fits; the first that does is taken."""


def stand_in_for(tensor: Any) -> StandIn | None:
    """What is handed out in place of this output of a root, None if it is cast."""
    return next((stand_in for stand_in in STAND_INS if stand_in.fits(tensor)), None)
