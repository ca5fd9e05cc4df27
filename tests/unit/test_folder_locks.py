"""Folders of a living process are told from those of a dead one, by file locks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.bench.trees.folder_locks import abandoned, claimed, sole_user
from gpurun.errors import GpurunError
from tests.conftest import REPOSITORY

HOLD = """
import sys, time
from pathlib import Path
from gpurun.bench.trees.folder_locks import claimed
with claimed(Path(sys.argv[1]), Path("/repository")) as folder:
    folder.mkdir()
    print("held", flush=True)
    time.sleep(600)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", HOLD, folder]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_only_the_folder_of_a_killed_process_is_abandoned(tmp_path: Path) -> None:
    dead, living = hold(tmp_path / "dead"), hold(tmp_path / "living")
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
    process = hold(tmp_path / "dead")
    process.kill()
    process.wait()
    for _ in range(2):
        with abandoned(tmp_path) as found:
            assert len(found) == 1


def test_no_link_pipe_or_file_of_somebody_elses_is_a_lock(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for name in ("link", "pipe", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "link.lock").symlink_to("mine")
    os.mkfifo(tmp_path / "pipe.lock")
    if os.getuid() == 0:
        (tmp_path / "other.lock").touch()
        os.chown(tmp_path / "other.lock", 12345, 12345)
    with abandoned(tmp_path) as found:
        assert found == ()
    refused = pytest.raises(GpurunError, match=r"link\.lock cannot be opened")
    with refused, sole_user(tmp_path / "link.lock"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_where_there_are_no_locks_nothing_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*args: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with claimed(tmp_path / "ours", Path("/repository")) as ours:
        ours.mkdir()
        with abandoned(tmp_path) as found:
            assert found == ()
