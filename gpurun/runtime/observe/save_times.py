"""The time that a script spends in `torch.save`: it trains nothing meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from gpurun.records.frames import drop_frame
from gpurun.runtime.core.patching import replace

now = time.perf_counter_ns


class SaveTimes:
    """Counts and times the calls of `torch.save`; a call inside another is a part of it."""

    def __init__(self) -> None:
        self.saves = 0
        self.elapsed_ns = 0
        self._saving: set[int] = set()

    def install(self) -> None:
        """Watch `torch.save`, which pickles as the function of its module."""
        import torch

        if replace(torch.serialization, "save", self._watch):
            torch.save = torch.serialization.save

    def _watch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        saving = self._saving

        def save(*args: object, **kwargs: object) -> Any:
            thread, began = get_ident(), now()
            outermost = thread not in saving
            saving.add(thread)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                if outermost:
                    saving.discard(thread)
                    self.saves += 1
                    self.elapsed_ns += now() - began

        return save


SAVES = SaveTimes()
"""The saves of this process."""
