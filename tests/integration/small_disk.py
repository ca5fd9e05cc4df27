"""A file system that soon has no room left, for the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PREPARE = """
mount -t tmpfs -o size={kilobytes}k none small || exit 99
cp work/* small/ && cd small || exit 98
"""


def on_a_small_disk(
    folder: Path, environment: dict[str, str], command: str, kilobytes: int = 300
) -> subprocess.CompletedProcess[bytes]:
    """Run a shell `command` on a tmpfs, whose only files are those of `folder`; $0 is python.

    Nothing of it is there afterwards but what the command writes to its parent folder.
    """
    work = folder / "work"
    work.mkdir()
    (folder / "small").mkdir()
    for path in folder.iterdir():
        if path.is_file():
            path.rename(work / path.name)
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            PREPARE.format(kilobytes=kilobytes) + command,
            sys.executable,
        ],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=800,
        check=False,
    )
    if done.returncode == 99 or done.stderr.startswith(b"unshare:"):
        pytest.skip("a small file system cannot be mounted here")
    return done
