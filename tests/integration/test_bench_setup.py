"""What a side needs beside its commit: untracked files, and a setup command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpurun.bench.trees.side_setup import run_setup
from gpurun.errors import ExitCode, GpurunError
from tests.conftest import REPOSITORY
from tests.integration.launched import alive, wait_for
from tests.integration.side_launches import benchmark
from tests.integration.worktree_sides import assert_nothing_left, both, two_commits
from tests.repositories import commit, git, new_repository

pytestmark = pytest.mark.usefixtures("settings_of_nobody")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_commits(tmp_path)


def test_needed_files_come_along_and_committed_ones_stay_as_committed(folder: Path) -> None:
    large = folder.parent / "large"
    large.mkdir()
    (folder / "data" / "small.txt").write_text("of the working tree")
    (folder / "data" / "made.bin").write_text("untracked")
    (folder / "data" / "deep" / "er").mkdir(parents=True)
    (folder / "data" / "deep" / "er" / "x").write_text("deep")
    (folder / "data" / "all").symlink_to("../../large")
    (folder / "data" / "near").symlink_to("made.bin")
    with both(folder, benchmark(folder, needed=("data/*",))) as sides:
        data = sides.baseline.folder / "data"
        assert (data / "made.bin").read_text() == "untracked"
        assert (data / "small.txt").read_text() == "old"
        assert (data / "deep" / "er" / "x").read_text() == "deep"
        assert (data / "all").resolve() == large
        assert (data / "near").resolve() == data / "made.bin"


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A repository whose older commit has a link out of it, where the newer one has a folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = new_repository(tmp_path / "project")
    (folder / "data").symlink_to(outside)
    (folder / "inner").mkdir()
    (folder / "near").symlink_to("inner")
    git(folder, "add", "data", "near")
    commit(folder, {"inner/small.txt": "old"})
    git(folder, "rm", "-q", "data", "near")
    commit(folder, {"data/train.py": "new", "near/train.py": "new"})
    return folder


@pytest.mark.parametrize("below", ["", "deep/er/"])
def test_no_needed_file_is_written_behind_a_link_out_of_the_tree(
    linked: Path, tmp_path: Path, below: str
) -> None:
    (linked / "data" / below).mkdir(parents=True, exist_ok=True)
    (linked / "data" / below / "x").write_text("needed")
    asked = benchmark(linked, needed=(f"data/{below}x",))
    with (
        pytest.raises(GpurunError, match=f"data/{below}x .* behind a link") as told,
        both(linked, asked),
    ):
        pass
    assert "take it out of needed" in told.value.todo
    assert not list((tmp_path / "outside").iterdir())
    assert_nothing_left(linked)


def test_a_needed_file_may_lie_behind_a_link_within_the_tree(linked: Path) -> None:
    (linked / "near" / "x").write_text("needed")
    with both(linked, benchmark(linked, needed=("near/x",))) as sides:
        assert (sides.baseline.tree.root / "inner" / "x").read_text() == "needed"


def test_a_needed_link_and_what_lies_behind_it_leave_its_target_alone(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x").write_text("the user's")
    (folder / "all").symlink_to(tmp_path / "set")
    with both(folder, benchmark(folder, needed=("all", "all/x"))) as sides:
        assert (sides.baseline.folder / "all").readlink() == tmp_path / "set"
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["x"]


def test_launches_and_setup_do_not_start_behind_a_link_out_of_the_tree(
    linked: Path, tmp_path: Path
) -> None:
    made = benchmark(linked / "data", setup="touch here")
    with pytest.raises(GpurunError, match="data of the other commit is a link"), both(linked, made):
        pass
    assert not list((tmp_path / "outside").iterdir())
    assert_nothing_left(linked)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("data/*.npz", "nothing in"),
        ("/etc/hosts", "is no path inside"),
        ("../x", "is no path"),
        ("**x", "needed: .*Invalid pattern"),
    ],
)
def test_needed_files_that_cannot_be_copied_are_named(
    folder: Path, pattern: str, says: str
) -> None:
    with (
        pytest.raises(GpurunError, match=says),
        both(folder, benchmark(folder, needed=(pattern,))),
    ):
        pass
    assert_nothing_left(folder)


def test_setup_runs_on_both_sides_in_environments_of_their_own(folder: Path) -> None:
    setup = (
        "echo $MINE; cat train.py > built; "
        'python -c \'import sys; open("prefix", "w").write(sys.prefix)\''
    )
    made = benchmark(folder / "scripts", setup=setup, env={"MINE": "yes"})
    with both(folder, made) as sides:
        assert (sides.baseline.folder / "built").read_text() == "old"
        assert (sides.current.folder / "built").read_text() == "new"
        prefixes = [
            Path((s.folder / "prefix").read_text()) for s in (sides.baseline, sides.current)
        ]
        assert prefixes == [sides.baseline.environment, sides.current.environment]
        assert len({*prefixes, Path(sys.prefix)}) == 3
    logs = folder / ".gpurun" / "logs"
    assert (logs / "setup-baseline.log").read_text() == "yes\n"
    assert_nothing_left(folder)


def test_setup_and_needed_files_are_of_the_configurations_folder(folder: Path) -> None:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "small.bin").write_text("small")
    made = benchmark(folder / "scripts", setup="pwd > built", needed=("data/*",), base=folder)
    with both(folder, made) as sides:
        for side in (sides.baseline, sides.current):
            assert side.folder == side.tree.root / "scripts"
            assert (side.tree.root / "built").read_text() == f"{side.tree.root}\n"
            assert (side.tree.root / "data" / "small.bin").read_text() == "small"
    (folder / "built").unlink()
    assert_nothing_left(folder)


def test_a_configuration_outside_of_the_repository_sets_up_where_launches_start(
    tmp_path: Path, folder: Path
) -> None:
    made = benchmark(folder / "scripts", setup="pwd > built", base=tmp_path)
    with both(folder, made) as sides:
        for side in (sides.baseline, sides.current):
            assert (side.folder / "built").read_text() == f"{side.folder}\n"


@pytest.mark.parametrize(("fails_on", "side"), [("old", "baseline"), ("new", "current")])
def test_a_setup_that_fails_on_one_side_names_it_with_its_last_lines(
    folder: Path, fails_on: str, side: str
) -> None:
    setup = (
        f"echo building; ! grep -q {fails_on} scripts/train.py || {{ echo no compiler; exit 7; }}"
    )
    with pytest.raises(GpurunError) as caught, both(folder, benchmark(folder, setup=setup)):
        pass
    error = caught.value
    assert error.code == ExitCode.BENCHMARK_FAILED
    assert f"setup failed on the {side} side" in error.what
    assert "ended with 7: building | no compiler" in error.what
    assert "\n" not in error.what
    assert str(folder / ".gpurun" / "logs" / f"setup-{side}.log") in error.todo
    assert_nothing_left(folder)


def test_an_interrupted_setup_ends_with_all_that_it_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = folder.parent / "pid"
    made = benchmark(folder, setup=f"sleep 6000 & echo $! > {pids}; wait")

    def interrupt() -> None:
        wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), both(folder, made):
        pass
    assert wait_for(lambda: not alive(int(pids.read_text())))
    assert_nothing_left(folder)


def test_a_setup_that_is_interrupted_before_its_process_is_known_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C within Popen: the command runs, and nobody has its process id."""
    pids = tmp_path / "pid"
    real = subprocess.Popen

    def interrupted(words: list[str], **more: Any) -> Any:
        child = real(words, **more)
        if words[-1].startswith("sleep"):
            assert wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
            raise KeyboardInterrupt
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_setup(
            f"sleep 6000 & echo $! > {pids}; wait", "baseline", tmp_path, os.environ, tmp_path
        )
    assert wait_for(lambda: not alive(int(pids.read_text())))


def test_a_setup_ends_with_a_killed_comparison_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    words = (
        "import os, pathlib, sys; from gpurun.bench.trees.side_setup import run_setup; "
        "here = pathlib.Path(sys.argv[1]); "
        "run_setup('sleep 6000 & echo $! > pid; wait', 'baseline', here, os.environ, here)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", words, tmp_path], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    assert wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    process.kill()
    process.wait()
    assert wait_for(lambda: not alive(int(pids.read_text())))
