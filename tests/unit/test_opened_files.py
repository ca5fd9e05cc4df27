"""The files of a tree that are opened while a launch runs, as the kernel tells them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpurun.records.events import FilesOpenedEvent
from gpurun.runtime.trial import opened_files
from gpurun.runtime.trial.opened_files import OpenedFiles


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[FilesOpenedEvent]:
    events: list[FilesOpenedEvent] = []
    monkeypatch.setattr(opened_files.RECORDER, "event", events.append)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return events


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "train.py", "model.py", "config/base.toml", "__pycache__/model.cpython-311.pyc",
        "__pycache__/other.cpython-311.opt-1.pyc", ".git/HEAD", ".gpurun/record.json",
        "env/pyvenv.cfg", "env/lib/module.py",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


def test_each_file_that_is_opened_is_told_once_by_its_path(
    tree: Path, told: list[FilesOpenedEvent]
) -> None:
    watched = OpenedFiles(str(tree))
    for name in ("train.py", "config/base.toml", "train.py", ".git/HEAD", "env/lib/module.py"):
        (tree / name).read_text()
    os.listdir(tree / "config")
    os.stat(tree / "model.py")
    watched.write()
    assert told == [FilesOpenedEvent(("config/base.toml", "train.py"))]


def test_bytecode_counts_as_its_source(tree: Path, told: list[FilesOpenedEvent]) -> None:
    watched = OpenedFiles(str(tree))
    for path in (tree / "__pycache__").iterdir():
        path.read_text()
    watched.write()
    assert told == [FilesOpenedEvent(("model.py", "other.py"))]


def test_what_may_have_been_missed_makes_the_list_unknown(
    tree: Path, told: list[FilesOpenedEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = OpenedFiles(str(tree))
    watched._take(opened_files.HEAD.pack(-1, opened_files.OVERFLOW, 0, 0))
    watched.write()
    monkeypatch.setattr(opened_files, "MOST_FOLDERS", 1)
    OpenedFiles(str(tree)).write()
    monkeypatch.undo()
    assert told == [FilesOpenedEvent(None)] * 2


def test_bytecode_elsewhere_makes_the_list_unknown(
    tree: Path, told: list[FilesOpenedEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", "/somewhere")
    OpenedFiles(str(tree)).write()
    assert told == [FilesOpenedEvent(None)]


def test_a_forked_process_writes_none(
    tree: Path, told: list[FilesOpenedEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = OpenedFiles(str(tree))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    watched.write()
    assert told == []
