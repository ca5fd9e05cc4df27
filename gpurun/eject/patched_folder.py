"""A folder that reads as the user's with some files changed: links to all other files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def patched_folder(folder: Path, changed: Mapping[Path, bytes], within: Path) -> Iterator[Path]:
    """A copy of `folder`, made of links, with these of its files changed; below `within`.

    `changed`: contents by absolute path, all below `folder`. It is removed at the end of the block.
    """
    files = {path.relative_to(folder): text for path, text in changed.items()}
    with tempfile.TemporaryDirectory(prefix="patched-", dir=within) as made:
        _fill(Path(made), folder, files, within)
        yield Path(made)


def _fill(made: Path, folder: Path, files: Mapping[Path, bytes], within: Path) -> None:
    """Links to the entries of `folder`; a folder that holds a changed file is made anew."""
    below = {path.parts[0] for path in files}
    for entry in os.scandir(folder):
        place = made / entry.name
        if entry.name not in below:
            if not within.is_relative_to(entry.path):  # a link to what holds it has no end
                place.symlink_to(entry.path)
            continue
        inner = {
            path.relative_to(entry.name): text
            for path, text in files.items()
            if path.parts[0] == entry.name
        }
        if entry.is_dir():
            place.mkdir()
            _fill(place, Path(entry.path), inner, within)
        else:
            place.write_bytes(inner[Path(".")])
            place.chmod(entry.stat().st_mode)
