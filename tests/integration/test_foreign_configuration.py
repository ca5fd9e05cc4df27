"""`gpurun.toml` decides what gpurun runs and writes: one that others may write is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.arguments.gpurun_toml import load_config
from tests.conftest import Gpurun

pytestmark = pytest.mark.forked

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
CODE = (
    'knobs = ["mine.py"]\n',
    '[bench]\nsetup = "touch ran"\nscript = "train.py"\n',
    '[run]\nout = "evil"\n',
    '[optimize]\nallow = ["pipeline", "numerics", "training"]\n',
)


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
def test_the_configuration_of_another_user_is_refused_by_name(
    code: str, folder: Path, gpurun: Gpurun
) -> None:
    config = folder.parent / "gpurun.toml"
    config.write_text(code)
    os.chown(config, OTHER, OTHER)
    assert f"belongs to uid {OTHER}" in refused(gpurun, folder, config)
    assert not (folder.parent / "evil").exists()
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
    assert b"decides what gpurun runs and writes, and it belongs to" in done.stderr


@pytest.mark.parametrize(
    "loosen",
    [
        lambda top: (top / "gpurun.toml").chmod(0o646),
        lambda top: (top / "mine.py").chmod(0o666),
        lambda top: top.chmod(0o777),
        lambda top: ((top / "mine.py").unlink(), top.chmod(0o1777)),
    ],
    ids=["the file", "its knob", "its folder", "a place where its knob is missing"],
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


def test_a_knob_that_interrupts_with_words_ends_as_by_ctrl_c(folder: Path, gpurun: Gpurun) -> None:
    (folder.parent / "mine.py").write_text("raise KeyboardInterrupt('stop')\n")
    (folder / "none.json").write_text('{"settings": {}}')
    done = gpurun("--settings", "none.json", "train.py", cwd=folder)
    assert done.returncode == 130, done.stderr.decode()
    assert done.stderr.decode().splitlines()[-1] == "verdict=interrupted exit=130"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_configuration_that_holds_nothing_may_be_anybodys(folder: Path, gpurun: Gpurun) -> None:
    config = folder.parent / "gpurun.toml"
    config.write_text("# nothing\n")
    os.chown(config, OTHER, OTHER)
    assert gpurun("train.py", cwd=folder).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_of_another_user_to_a_file_of_ones_own_is_refused(
    folder: Path, tmp_path: Path, gpurun: Gpurun
) -> None:
    config, own = tmp_path / "gpurun.toml", tmp_path / "elsewhere" / "own.toml"
    own.parent.mkdir()
    config.rename(own)
    config.symlink_to(own)
    os.chown(config, OTHER, OTHER, follow_symlinks=False)
    assert f"it belongs to uid {OTHER}" in refused(gpurun, folder, config)


def test_paths_in_a_configuration_behind_a_link_are_relative_to_the_file_itself(
    folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "elsewhere" / "own.toml"
    own.parent.mkdir()
    own.write_text('knobs = ["mine.py"]\n[run]\nout = "records"\n')
    (folder / "gpurun.toml").symlink_to(own)
    config = load_config(folder)
    assert config.source == own
    assert (config.knobs, config.out) == (
        (str(own.parent / "mine.py"),),
        str(own.parent / "records"),
    )


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
