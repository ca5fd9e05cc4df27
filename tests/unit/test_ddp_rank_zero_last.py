"""Rank 0 changes names of files after the other ranks."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.runtime.ddp import rank_zero_last
from gpurun.runtime.ddp.rank_zero_last import Meetings, RankZeroLast

CHANGES: dict[str, Callable[[Path], object]] = {
    "makes a folder": lambda folder: (folder / "deep" / "out").mkdir(parents=True),
    "removes a folder": lambda folder: shutil.rmtree(folder / "old"),
    "renames a file": lambda folder: (folder / "a").replace(folder / "b"),
    "removes a file": lambda folder: (folder / "a").unlink(),
    "makes a link": lambda folder: (folder / "latest").symlink_to("old"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "old").mkdir()
    (tmp_path / "a").touch()
    return tmp_path


@pytest.fixture
def other(folder: Path) -> Meetings:
    """The meetings of rank 1."""
    meetings = Meetings()
    meetings.show(folder / "count")
    return meetings


@pytest.fixture
def zero(folder: Path, other: Meetings) -> RankZeroLast:
    """Rank 0's side, called as the audit hook that it is: a hook would outlive the test."""
    return RankZeroLast([folder / "count"], Meetings())


def seconds_of(zero: RankZeroLast, event: str, *args: object) -> float:
    before = time.monotonic()
    zero._heard(event, args)
    return time.monotonic() - before


def test_rank_zero_waits_until_the_others_have_come_to_the_next_meeting(
    zero: RankZeroLast, other: Meetings
) -> None:
    threading.Timer(0.2, other.next).start()
    assert seconds_of(zero, "os.rename", "a", "b", -1, -1) >= 0.15
    assert seconds_of(zero, "os.remove", "a", -1) < 0.15


def test_rank_zero_waits_for_no_rank_that_has_ended(zero: RankZeroLast, other: Meetings) -> None:
    other.end()
    assert seconds_of(zero, "os.rename", "a", "b", -1, -1) < 0.15


def test_rank_zero_gives_up_for_good(
    zero: RankZeroLast, other: Meetings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_last, "PATIENCE_SECONDS", 0.2)
    assert seconds_of(zero, "os.rmdir", "old", -1) >= 0.2
    assert seconds_of(zero, "os.rmdir", "old", -1) < 0.15


def test_a_folder_that_is_there_is_not_waited_for(zero: RankZeroLast, folder: Path) -> None:
    assert seconds_of(zero, "os.mkdir", str(folder / "old"), 0o777, -1) < 0.15


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_name_is_one_that_is_waited_for(
    folder: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    class Recorded(RankZeroLast):
        def _wait(self) -> None:
            heard.append("waited")

    zero = Recorded([folder / "count"], Meetings())
    zero.install()
    try:
        CHANGES[change](folder)
    finally:
        zero._others = []
    assert heard


def test_a_library_takes_care_of_itself(folder: Path) -> None:
    code = compile("found = asked(frame())", "/x/site-packages/y/z.py", "exec")
    names = {"asked": rank_zero_last.asked_by_script, "frame": sys._getframe}
    exec(code, names)
    assert names["found"] is False
    assert rank_zero_last.asked_by_script(sys._getframe()) is True


def test_a_count_is_seen_by_another_process(folder: Path, other: Meetings) -> None:
    child = os.fork()
    if child == 0:  # a child of the rank has no meetings of its own
        other.next()
        os._exit(0)
    os.waitpid(child, 0)
    assert int.from_bytes((folder / "count").read_bytes(), "little") == 0
    other.next()
    other.next()
    assert int.from_bytes((folder / "count").read_bytes(), "little") == 2
