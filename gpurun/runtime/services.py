"""In trials nothing is uploaded: hub and artifact uploads return at once, having done nothing.

Services that a variable can switch off are switched off by the launcher; these cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurun.runtime.imports import when_imported
from gpurun.runtime.patching import replace

HUB_UPLOADS = (
    "create_repo", "create_commit", "upload_file", "upload_folder", "upload_large_folder",
    "create_branch", "create_tag", "delete_file", "delete_repo", "super_squash_history",
)  # fmt: skip


def silence() -> None:
    """Make every upload of the Hugging Face hub client a no-op."""
    when_imported("huggingface_hub.hf_api", _hub_is_here)


def _hub_is_here(module: ModuleType) -> None:
    for name in HUB_UPLOADS:
        if hasattr(module.HfApi, name):
            replace(module.HfApi, name, _nothing)


def _nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    def upload(*args: Any, **kwargs: Any) -> None:
        return None

    return upload
