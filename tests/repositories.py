"""Git repositories for tests, made by the real git and untouched by the user's settings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

QUIET = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(folder: Path, *words: str | Path) -> str:
    """The output of a git command, without its last line end."""
    done = subprocess.run(
        ["git", "-C", folder, "-c", "protocol.file.allow=always", *words],
        env={**os.environ, **QUIET},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


def new_repository(folder: Path) -> Path:
    """An empty repository on branch main."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    return folder


def commit(folder: Path, files: dict[str, str], message: str = "change") -> str:
    """Write files, commit them with whatever else is staged, and return the commit."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git(folder, "add", name)
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def state(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder with its content, every link with its target."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else "a folder"
    return found
