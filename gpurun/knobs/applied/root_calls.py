"""The calls of root modules: a context that keeps another one open, and who copies the outputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor


class RootContext:
    """`inner`, which entering may have opened, is closed when the call of the root ends."""

    inner: AbstractContextManager[object] | None = None

    def open_inside(self, inner: AbstractContextManager[object]) -> None:
        """Keep `inner` open until the call of the root ends."""
        self.inner = inner
        inner.__enter__()

    def __exit__(self, *how: Any) -> None:
        if self.inner is not None:
            self.inner.__exit__(*how)


COPIED_LATER: list[Callable[[Tensor], bool]] = []
"""Each tells whether a knob copies this output of a root after those before it had it in hand."""
