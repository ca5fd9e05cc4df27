"""What the script does by itself that knobs must respect: its own autocast, compile, DDP, ..."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from gpurun.records.events import TraitEvent
from gpurun.runtime.patching import drop_frame, replace
from gpurun.runtime.recorder import RECORDER


class Traits:
    """Traits seen so far: name to where."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self._library = ""

    def install(self, torch: Any) -> None:
        """Watch the places where a script would show one of them."""
        self._library = os.path.dirname(torch.__file__) + os.sep
        self._watch(torch.amp.autocast_mode.autocast, "__enter__", "autocast")
        self._watch(torch, "compile", "compile")
        self._watch(torch.nn.Module, "compile", "compile")
        self._watch(torch.amp.grad_scaler.GradScaler, "__init__", "grad_scaler")
        self._watch(torch.nn.DataParallel, "__init__", "data_parallel")
        self._watch(torch.nn.parallel.DistributedDataParallel, "__init__", "ddp")
        self._watch(torch.optim.lr_scheduler.OneCycleLR, "__init__", "scheduler_total_steps")
        if torch.distributed.is_available():
            self._watch(torch.distributed, "init_process_group", "process_group")

    def note(self, trait: str, detail: str) -> None:
        """Record a trait, once."""
        if trait not in self.seen:
            self.seen[trait] = detail
            RECORDER.event(TraitEvent(trait=trait, detail=detail))

    def _watch(self, owner: Any, name: str, trait: str) -> None:
        traits = self

        def watcher(original: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*args: Any, **kwargs: Any) -> Any:
                frame = sys._getframe(1)
                file = frame.f_code.co_filename
                if not file.startswith(traits._library) and not _ours(file):
                    traits.note(trait, f"{os.path.basename(file)}:{frame.f_lineno}")
                    if getattr(owner, name, None) is watched:
                        setattr(owner, name, original)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    drop_frame(error)
                    raise

            return watched

        replace(owner, name, watcher)


def _ours(file: str) -> bool:
    parts = file.split(os.sep)
    return len(parts) > 2 and parts[-3] == "gpurun" and parts[-2] in ("runtime", "knobs")


TRAITS = Traits()
"""The traits of this process."""
