"""A context around the calls of root modules that keeps another context open inside."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class RootContext:
    """A context of root calls: `inner`, which entering may have opened, is closed with it."""

    inner: Any = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.inner is not None:
            self.inner.__exit__(kind, error, trace)
