"""The package has a name of its own: `gpurun` on the package index is another project."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import gpurun
from gpurun.measure.fingerprint import fingerprint
from tests.conftest import REPOSITORY

PROJECT = (REPOSITORY / "pyproject.toml").read_text()
NAME = "gpurun-torch"
OTHERS = re.compile(r"""\bpip3? install\b[^\n|#&;`]*[ "']gpurun(?:\[[\w,]+\])?(?![-\w./\[])""")
"""An installation of the other project: the bare word in one command (a backtick ends it)."""


def tracked_texts() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=False
    )
    paths = [REPOSITORY / name.decode() for name in listed.stdout.split(b"\0") if name]
    if not paths:  # not a checkout
        paths = [p for p in REPOSITORY.rglob("*") if p.suffix in (".py", ".md", ".toml", ".yml")]
    found = {}
    for path in paths:
        try:
            found[str(path.relative_to(REPOSITORY))] = path.read_text()
        except (OSError, UnicodeDecodeError):
            continue
    return found


@pytest.mark.parametrize("words", ["gpurun", "gpurun -r requirements.txt", '"gpurun[postgres]"'])
def test_the_other_project_would_be_noticed(words: str) -> None:
    assert OTHERS.search(f"pip install -U {words}")


@pytest.mark.parametrize("words", [NAME, f'"{NAME}[dev]"', "gpurun.whl", "-e ."])
def test_the_own_name_is_no_other_project(words: str) -> None:
    assert not OTHERS.search(f"pip install -U {words}")


def test_nothing_tells_users_to_install_the_other_project() -> None:
    texts = tracked_texts()
    assert "README.md" in texts
    told = {
        name: found.group()
        for name, text in texts.items()
        if name != "tests/unit/test_package_name.py" and (found := OTHERS.search(text))
    }
    assert told == {}


def test_the_project_and_its_extras_have_the_own_name() -> None:
    assert f'\nname = "{NAME}"' in PROJECT
    assert f'"{NAME}[postgres,frameworks,metrics,tensorboard]"' in PROJECT
    assert f'\nversion = "{gpurun.__version__}"' in PROJECT


def test_the_version_is_never_that_of_the_other_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "gpurun-9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: gpurun\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert metadata.version("gpurun") == "9.9"
    assert fingerprint(["train.py"], tmp_path, None)["gpurun"] == gpurun.__version__
