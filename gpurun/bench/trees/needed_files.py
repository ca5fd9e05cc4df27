"""Untracked files that a benchmark needs, copied from the user's tree into the other side's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpurun.bench.trees.installed_packages import Tree
from gpurun.errors import GpurunError
from gpurun.rundir import FOLDER


def copy_needed(patterns: Sequence[str], source: Path, target: Path, tree: Tree) -> None:
    """Copy what the glob `patterns` match in `source` to the same places in `target`, in `tree`.

    Files that `target` has already are of its own commit, and stay. A link stays a link (one that
    leaves the folder is made absolute), so that a large data set need not be copied.
    """
    files: dict[Path, Path] = {}
    for pattern in patterns:
        found = list(_matches(pattern, source))
        if not found:
            raise GpurunError(
                f"[bench] needed: nothing in {source} matches {pattern!r}",
                "make it, or take it out of needed",
            )
        copies = {path: target / path.relative_to(source) for path in found}
        files |= {path: copy for path, copy in copies.items() if not os.path.lexists(copy)}
    for path, copy in files.items():
        if os.path.lexists(copy):  # behind a link that was copied just now
            continue
        if not tree.holds(copy.parent):
            raise GpurunError(
                f"[bench] needed: {copy.relative_to(target)} of the other commit lies behind a link"
                f" to {os.path.realpath(copy.parent)}, outside of its tree",
                "take it out of needed: both sides find that place as it is",
            )
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            copy.symlink_to(_link_target(path, source))
        else:
            shutil.copy2(path, copy)


def _matches(pattern: str, source: Path) -> Iterator[Path]:
    """Files and links; of a folder that matches, all that is in it."""
    if os.path.isabs(pattern) or ".." in Path(pattern).parts or not pattern.strip():
        raise GpurunError(
            f"[bench] needed: {pattern!r} is no path inside of {source}",
            "name files of the repository; both sides find files outside it in the same place",
        )
    try:
        matches = sorted(source.glob(pattern))
    except ValueError as error:
        raise GpurunError(f"[bench] needed: {pattern!r}: {error}", "see pathlib's glob") from None
    for match in matches:
        if match.is_symlink() or match.is_file():
            yield match
            continue
        for place, names, files in os.walk(match):
            names[:] = [name for name in names if name not in (FOLDER, ".git")]
            linked = [name for name in names if os.path.islink(os.path.join(place, name))]
            yield from (Path(place, name) for name in (*linked, *files))


def _link_target(link: Path, source: Path) -> str:
    text = os.readlink(link)
    absolute = Path(os.path.normpath(link.parent / text))
    inside = not os.path.isabs(text) and absolute.is_relative_to(source)
    return text if inside else str(absolute)
