"""Who copies the outputs of root modules: knobs agree on it here."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

COPIED_LATER: list[Callable[[Tensor], bool]] = []
"""Each tells whether a knob copies this output of a root after those before it had it in hand."""
