"""`gpurun.toml` can make gpurun run code: one that others can write is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Gpurun

OTHER = 12_345
ORDINARY = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""Another user than the owner of files."""
KNOB = """
from gpurun.knobs.api import Effect, Knob, Skip
open("ran", "w")
class Mine(Knob):
    name = "mine"
    effect = Effect.PIPELINE
    def candidates(self, facts):
        return Skip("only to be loaded")
    def apply(self, value, hooks):
        pass
"""
CODE = 'knobs = ["mine.py"]\n', '[bench]\nsetup = "touch ran"\nscript = "train.py"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to start in, below the one that holds the configuration and its knob."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "train.py").write_text("print('ran')")
    (tmp_path / "mine.py").write_text(KNOB)
    (tmp_path / "gpurun.toml").write_text(CODE[0])
    return inner


def refused(gpurun: Gpurun, folder: Path, file: Path, **env: str) -> str:
    """What gpurun says of the file, having run nothing."""
    for words in (["train.py"], ["--settings", "none.json", "train.py"], ["bench", "train.py"]):
        done = gpurun(*words, cwd=folder, env=env)
        told = done.stderr.decode().splitlines()
        assert (done.returncode, done.stdout) == (2, b""), told
        assert str(file) in told[0]
    assert not list(folder.parent.rglob("ran"))
    return "\n".join(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("code", CODE)
def test_code_in_the_configuration_of_another_user_is_refused_by_name(
    code: str, folder: Path, gpurun: Gpurun
) -> None:
    config = folder.parent / "gpurun.toml"
    config.write_text(code)
    os.chown(config, OTHER, OTHER)
    assert f"belongs to uid {OTHER}" in refused(gpurun, folder, config)
    (folder / "gpurun.toml").write_text("")  # the nearest one holds
    assert gpurun("train.py", cwd=folder).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_by_sudo_works_in_the_files_of_its_user(folder: Path, gpurun: Gpurun) -> None:
    for path in (folder.parent, folder.parent / "gpurun.toml", folder.parent / "mine.py"):
        os.chown(path, OTHER, OTHER)
    assert "SUDO_UID" in refused(gpurun, folder, folder.parent / "gpurun.toml")
    assert gpurun("train.py", cwd=folder, env={"SUDO_UID": str(OTHER)}).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_user_is_asked_about_the_files_of_others_too(
    folder: Path, clean_environment: dict[str, str]
) -> None:
    os.chown(folder.parent / "gpurun.toml", OTHER, OTHER)
    done = subprocess.run(
        [*ORDINARY, sys.executable, "-m", "gpurun", "train.py"],
        cwd=folder,
        env=clean_environment,
        capture_output=True,
        check=False,
    )
    if done.stderr.startswith(b"unshare:"):
        pytest.skip("no user namespaces here")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"makes gpurun run code, and it belongs to" in done.stderr


@pytest.mark.parametrize(
    "loosen",
    [
        lambda top: (top / "gpurun.toml").chmod(0o646),
        lambda top: (top / "mine.py").chmod(0o666),
        lambda top: top.chmod(0o777),
    ],
    ids=["the file", "its knob", "its folder"],
)
def test_code_that_others_may_write_is_refused(
    loosen: Callable[[Path], None], folder: Path, gpurun: Gpurun
) -> None:
    loosen(folder.parent)
    assert "others may write" in refused(gpurun, folder, folder.parent / "gpurun.toml")


def test_a_file_of_ones_own_runs_its_knobs(folder: Path, gpurun: Gpurun) -> None:
    settings = folder / "none.json"
    settings.write_text('{"settings": {}}')
    folder.parent.chmod(0o1777)  # as /tmp: nobody renames the files of others
    assert gpurun("--settings", settings, "train.py", cwd=folder).returncode == 0
    assert (folder / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_configuration_that_runs_no_code_may_be_anybodys(folder: Path, gpurun: Gpurun) -> None:
    config = folder.parent / "gpurun.toml"
    config.write_text("[optimize]\nbudget = 20\n")
    os.chown(config, OTHER, OTHER)
    assert gpurun("train.py", cwd=folder).returncode == 0


@pytest.mark.parametrize("name", ["gpurun.toml", "pyproject.toml"])
def test_a_configuration_that_is_no_file_holds_nobody_up(
    name: str, folder: Path, gpurun: Gpurun
) -> None:
    (folder.parent / "gpurun.toml").unlink()
    path = folder.parent / name
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(path)
        done = gpurun("train.py", cwd=folder, timeout=60)
        told = done.stderr.decode()
        assert done.returncode == (2 if name == "gpurun.toml" else 0), told
        assert name == "pyproject.toml" or "it is no regular file" in told
        path.unlink()
