"""Round a model's parameters once: what rounding alone does to the script's training."""

from __future__ import annotations

from typing import Any

from gpurun.runtime.patching import guarded
from gpurun.runtime.roots import ROOTS


def install(torch: Any) -> None:
    """Round float32 parameters of each root to bfloat16, in place, before its first step.

    They stay float32: what differs is one rounding error, as large as those of half precision.
    """

    def round_root(module: Any) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dtype is torch.float32 and not parameter.is_meta:
                    parameter.copy_(parameter.to(torch.bfloat16))

    ROOTS.on_root.append(guarded("round the parameters", round_root))
