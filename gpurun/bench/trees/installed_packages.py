"""Installed files that lead python to a tree: editable installs of every kind, and copies.

Read from the folders of packages, without importing anything of them:

* a path file (`X.pth`) names a folder of the tree (setuptools with a src layout, hatch, flit,
  `setup.py develop`);
* a path file imports a module beside it that names the tree (`__editable___X_finder.py` of
  setuptools, and the like of meson-python, scikit-build-core and hatch);
* the metadata of a package (`direct_url.json`) say that it was copied from a folder of the tree
  (`pip install .`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from gpurun.measure.fingerprint import INSTALLED

IMPORT = re.compile(r"^import\s+(\w+)")
QUOTED_PATH = re.compile(r"""(["'])(/.*?)\1""")


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


@dataclass(frozen=True)
class Install:
    """An installed file that leads to `source`, a folder of a tree or an archive in it.

    `files`: those of a copy; none of an editable install.
    """

    file: Path
    source: Path
    files: frozenset[Path] = frozenset()


def site_folders(search_path: Sequence[str]) -> list[Path]:
    """The folders of packages among the places where a process looks for modules."""
    return [path for path in map(Path, dict.fromkeys(search_path)) if path.name in INSTALLED]


def editable_installs(places: Sequence[Path], tree: Tree) -> tuple[Install, ...]:
    """The files in folders of packages that make python look into `tree`."""
    found = (leads_to(path, tree) for place in places for path in sorted(place.glob("*.pth")))
    return tuple(install for install in found if install is not None)


def copies(places: Sequence[Path], tree: Tree) -> tuple[Install, ...]:
    """The packages in folders of packages that were copied from `tree`."""
    return tuple(copy for place in places for copy in _copies(place, tree))


def leads_to(path_file: Path, tree: Tree) -> Install | None:
    """The place in `tree` that a path file, or a module that it imports, leads to."""
    for line in _text(path_file).splitlines():
        imported = IMPORT.match(line)
        if imported is None:
            word = line.strip()
            if word and not word.startswith("#") and tree.holds(path_file.parent / word):
                return Install(path_file, path_file.parent / word)
            continue
        finder = path_file.parent / f"{imported[1]}.py"
        for _, quoted in QUOTED_PATH.findall(_text(finder)):
            if tree.holds(quoted):
                return Install(finder, Path(quoted))
    return None


def _copies(place: Path, tree: Tree) -> Iterator[Install]:
    for metadata in sorted(place.glob("*.dist-info/direct_url.json")):
        try:
            document = json.loads(_text(metadata))
            url = urlparse(document["url"])
            editable = document.get("dir_info", {}).get("editable", False)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        source = Path(unquote(url.path))
        if url.scheme == "file" and not editable and tree.holds(source):
            yield Install(metadata, source, frozenset(_recorded(metadata, place)))


def _recorded(metadata: Path, place: Path) -> Iterator[Path]:
    for line in _text(metadata.with_name("RECORD")).splitlines():
        yield place / line.rsplit(",", 2)[0].strip('"')


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
