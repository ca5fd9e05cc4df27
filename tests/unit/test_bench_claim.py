"""Folders of a living process are told from those of a dead one, with file locks or without."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.bench.trees.folder_locks import abandoned, claimed
from tests.conftest import REPOSITORY

HOLD = """
import fcntl, os, sys, time
from pathlib import Path
if sys.argv[2] == "none":
    def flock(*args):
        raise OSError(38, "Function not implemented")
    fcntl.flock = flock
from gpurun.bench.trees.folder_locks import claimed
with claimed(Path(sys.argv[1]), Path("/repository")) as folder:
    folder.mkdir()
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["locks", "none"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system with locks, and one that has none (as some of clusters)."""
    if request.param == "none":

        def flock(*args: object) -> None:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(fcntl, "flock", flock)
    return str(request.param)


def hold(folder: Path, locks: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLD, folder, locks]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_only_the_folder_of_a_killed_process_is_abandoned(tmp_path: Path, locks: str) -> None:
    dead, living = hold(tmp_path / "dead", locks), hold(tmp_path / "living", locks)
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        with claimed(tmp_path / "ours", Path("/repository")) as ours:
            ours.mkdir()
            with abandoned(tmp_path) as found:
                assert found == ((tmp_path / "dead", Path("/repository")),)
                (tmp_path / "dead").rmdir()
            with abandoned(tmp_path) as found:
                assert found == ()
            assert not (tmp_path / "dead.lock").exists()
            ours.rmdir()
        assert not (tmp_path / "ours.lock").exists()
    finally:
        living.kill()
        living.wait()


def test_a_folder_that_could_not_be_removed_is_found_again(tmp_path: Path) -> None:
    process = hold(tmp_path / "dead", "locks")
    process.kill()
    process.wait()
    for _ in range(2):
        with abandoned(tmp_path) as found:
            assert len(found) == 1


def test_without_locks_another_machines_folder_is_left_alone(tmp_path: Path, locks: str) -> None:
    (tmp_path / "far").mkdir()
    claim = {"pid": 2**22 + 1, "start": 1, "boot": "another machine", "repository": "/r"}
    (tmp_path / "far.lock").write_text(json.dumps(claim))
    with abandoned(tmp_path) as found:
        assert len(found) == (1 if locks == "locks" else 0)


def test_a_process_id_that_was_given_anew_is_not_the_old_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed(tmp_path / "ours", Path("/r")):
        claim = json.loads((tmp_path / "ours.lock").read_text())
    (tmp_path / "old").mkdir()
    (tmp_path / "old.lock").write_text(json.dumps({**claim, "start": claim["start"] - 1}))

    def flock(*args: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with abandoned(tmp_path) as found:
        assert [folder.name for folder, _ in found] == ["old"]
