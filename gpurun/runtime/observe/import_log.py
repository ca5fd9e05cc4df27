"""Records the modules that a script imports by its first step, for later trials to import early."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from gpurun.records.events import ImportsEvent
from gpurun.runtime.core.recorder import RECORDER

PACKAGES = frozenset(
    {
        "PIL", "accelerate", "datasets", "einops", "functorch", "huggingface_hub", "lightning",
        "lightning_fabric", "numpy", "pandas", "pytorch_lightning", "safetensors", "scipy",
        "sklearn", "sympy", "timm", "tokenizers", "torch", "torchaudio", "torchmetrics",
        "torchvision", "transformers", "triton",
    }
)  # fmt: skip
"""Packages that take long to import, and to which it makes no difference when that happens."""
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Where a module must lie: what the script brings with it is not there for others to import."""
HARMLESS = frozenset({"CUDA_MODULE_LOADING", "PYTORCH_NVML_BASED_CUDA_CHECK"})
"""Torch itself sets the first one when it first uses the device. Lightning sets the second one at
its import, and torch reads it at each call that asks for it (`torch/cuda/__init__.py`)."""

_start: dict[str, str] = {}


def begin() -> None:
    """Remember the environment before the script runs."""
    _start.update(os.environ)


def write() -> None:
    """Record the modules, and the environment variables that have changed since `begin`."""
    RECORDER.event(
        ImportsEvent(
            modules=tuple(name for name in list(sys.modules) if _known(name)),
            changed_variables=changed_variables(_start),
        )
    )


def changed_variables(start: Mapping[str, str]) -> tuple[str, ...]:
    """Environment variables that are not as they were at the start, sorted; no harmless ones."""
    names = (start.keys() | os.environ.keys()) - HARMLESS
    return tuple(sorted(x for x in names if start.get(x) != os.environ.get(x)))


def _known(name: str) -> bool:
    """Packages and what lies directly in them: these import the rest."""
    package, _, rest = name.partition(".")
    if package not in PACKAGES or "." in rest:
        return False
    path = str(getattr(sys.modules[name], "__file__", None))
    return any(place in path for place in INSTALLED)
