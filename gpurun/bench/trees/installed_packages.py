"""Installed files that lead python to a tree: editable installs of every kind, and copies.

Read from the folders of packages, without importing anything of them:

* a path file (`X.pth`) names a folder of the tree, or imports a module beside it that names one
  (`__editable___X_finder.py` of setuptools, and the like of other build systems);
* the metadata of a package (`direct_url.json`) say that it was copied from a folder of the tree
  (`pip install .`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

IMPORTED = re.compile(r"^import\s+(\w+)", re.MULTILINE)
NAMED = re.compile(r"""(?:^|["'])(/[^"'\n]*)""", re.MULTILINE)
"""An absolute path that is a line of a path file, or in quotes in a module."""


@dataclass(frozen=True)
class Tree:
    """A tree of files, without other trees that may lie inside of it (worktrees, records)."""

    root: Path
    without: tuple[Path, ...] = ()

    def holds(self, path: Path | str) -> bool:
        """True if the file or folder, links resolved, is of this tree."""
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(os.path.realpath(self.root)):
            return False
        return not any(real.is_relative_to(os.path.realpath(inner)) for inner in self.without)


def leads_to(path_file: Path, wanted: Callable[[str], bool]) -> Path | None:
    """The path file, or a module that it imports, that names a path which is `wanted`."""
    finders = (path_file.parent / f"{name}.py" for name in IMPORTED.findall(_text(path_file)))
    for file in (path_file, *finders):
        if any(map(wanted, NAMED.findall(_text(file)))):
            return file
    return None


def copies(places: Sequence[Path], tree: Tree) -> Iterator[tuple[Path, Path]]:
    """The files of packages in `places` that were copied from `tree`, each with its metadata."""
    for found in distributions(path=[str(place) for place in places]):
        try:
            document = json.loads(found.read_text("direct_url.json") or "{}")
            url = urlparse(document.get("url", ""))
            editable = document.get("dir_info", {}).get("editable", False)
        except (ValueError, AttributeError):
            continue
        if url.scheme == "file" and not editable and tree.holds(unquote(url.path)):
            own = [Path(str(found.locate_file(file))) for file in found.files or ()]
            folders = (file.parent for file in own if file.parent.suffix == ".dist-info")
            metadata = next(folders, None)
            if metadata is not None:  # some installers list no files
                yield from ((file, metadata / "direct_url.json") for file in own)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
