"""A context around the calls of root modules that keeps another context open inside."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


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
