"""A snapshot notices whatever a trial could have changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.isolation.folder_snapshot import snapshot


def furnish(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "file").write_text("content")
    (root / "folder/other").write_text("other")
    (root / "link").symlink_to("file")


def one_byte_with_the_same_times(root: Path) -> None:
    status = (root / "file").stat()
    with (root / "file").open("r+b") as file:
        file.write(b"C")
    os.utime(root / "file", ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced_by_an_equal_file(root: Path) -> None:
    status = (root / "file").stat()
    (root / "twin").write_text("content")
    (root / "twin").replace(root / "file")
    os.utime(root / "file", ns=(status.st_atime_ns, status.st_mtime_ns))


def relinked(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("folder")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "one byte, times set back": (one_byte_with_the_same_times, "changed: {}/file (content)"),
    "an equal file in its place": (replaced_by_an_equal_file, "changed: {}/file (inode)"),
    "another mode": (lambda root: (root / "file").chmod(0o600), "changed: {}/file (mode)"),
    "another time": (lambda root: os.utime(root / "file", (1, 1)), "changed: {}/file (time)"),
    "another link": (relinked, "changed: {}/link (link)"),
    "a new file": (lambda root: (root / "folder/new").touch(), "new: {}/folder/new"),
    "a file gone": (lambda root: (root / "folder/other").unlink(), "gone: {}/folder/other"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_kind_of_change_is_noticed(name: str, tmp_path: Path) -> None:
    change, expected = CHANGES[name]
    furnish(tmp_path)
    before = snapshot([tmp_path], exclude=[])
    change(tmp_path)
    differences = before.differences(snapshot([tmp_path], exclude=[]))
    words = expected.format(tmp_path)
    found = [line for line in differences if line.split(" (")[0] == words.split(" (")[0]]
    assert len(found) == 1
    for word in words.partition(" (")[2].strip(")").split(", "):
        assert word in found[0]


def test_reading_changes_nothing(tmp_path: Path) -> None:
    furnish(tmp_path)
    before = snapshot([tmp_path], exclude=[])
    (tmp_path / "file").read_text()
    os.listdir(tmp_path)
    assert before.differences(snapshot([tmp_path], exclude=[])) == ()


def test_what_is_excluded_may_change_and_its_folder_with_it(tmp_path: Path) -> None:
    furnish(tmp_path)
    exclude = [tmp_path / ".gpurun"]
    before = snapshot([tmp_path], exclude=exclude)
    (tmp_path / ".gpurun").mkdir()
    (tmp_path / ".gpurun/run").touch()
    assert before.differences(snapshot([tmp_path], exclude=exclude)) == ()


def test_a_tree_beyond_the_limit_is_compared_as_far_as_it_was_seen(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}").write_text("x")
    before = snapshot([tmp_path], exclude=[], limit=10)
    (tmp_path / "03").write_text("y")
    later = snapshot([tmp_path], exclude=[], limit=10)
    assert not before.complete
    assert [line.split(" ")[1] for line in before.differences(later)] == [str(tmp_path / "03")]
