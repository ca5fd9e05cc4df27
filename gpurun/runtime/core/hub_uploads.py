"""In trials nothing is uploaded: hub and artifact uploads return at once, having done nothing.

Services that a variable can switch off are switched off by the launcher; these cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.post_import import when_imported

HUB_UPLOADS = (
    "create_repo", "create_commit", "upload_file", "upload_folder", "upload_large_folder",
    "create_branch", "create_tag", "delete_file", "delete_repo", "super_squash_history",
)  # fmt: skip


class NothingUploaded(str):
    """The result of an upload in a trial: a string with the fields of the hub's own results.

    `repo_id` is the repository that was asked for; every other field is empty.
    """

    repo_id = ""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return ""


def block_uploads() -> None:
    """Make every upload of the Hugging Face hub client a no-op."""
    when_imported("huggingface_hub.hf_api", _hub_is_here)


def _hub_is_here(module: ModuleType) -> None:
    """Replace the methods, and the functions of the module that were bound to them before."""
    for name in HUB_UPLOADS:
        for owner in (module.HfApi, module):
            if hasattr(owner, name):
                replace(owner, name, _nothing)


def _nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    def upload(*args: object, **kwargs: object) -> NothingUploaded:
        result = NothingUploaded("")
        named = [a for a in args if isinstance(a, str)]
        result.repo_id = str(kwargs.get("repo_id") or (named[0] if named else ""))
        return result

    return upload
