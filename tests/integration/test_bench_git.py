"""What git is asked about a repository, and what the user reads where git cannot answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.bench.compare.compare_sides import choose_baseline
from gpurun.bench.trees.git import open_repository
from gpurun.errors import ExitCode, GpurunError
from tests.conftest import REPOSITORY
from tests.repositories import commit, git, new_repository


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "project")


@pytest.fixture
def branched(folder: Path) -> tuple[str, str, str]:
    """The commits where a branch left main, main's own, and the branch's, which is checked out."""
    left = commit(folder, {"train.py": "1"})
    git(folder, "checkout", "-q", "-b", "faster")
    mine = commit(folder, {"train.py": "2"})
    git(folder, "checkout", "-q", "main")
    theirs = commit(folder, {"other.py": "1"})
    git(folder, "checkout", "-q", "faster")
    return left, theirs, mine


def fault(folder: Path, ref: str = "main") -> GpurunError:
    with pytest.raises(GpurunError) as caught:
        choose_baseline(open_repository(folder), ref)
    assert "\n" not in caught.value.what
    assert caught.value.todo
    return caught.value


def test_the_baseline_is_where_the_branch_left_main(
    folder: Path, branched: tuple[str, str, str]
) -> None:
    baseline = choose_baseline(open_repository(folder), "main")
    assert baseline.commit == branched[0]
    assert baseline.why == f"baseline {branched[0][:9]}: the merge base of main and HEAD"


def test_a_branch_whose_name_looks_like_a_flag_is_a_branch(
    folder: Path, branched: tuple[str, str, str]
) -> None:
    git(folder, "update-ref", "refs/heads/-flag", branched[1])
    assert choose_baseline(open_repository(folder), "-flag").commit == branched[0]
    assert "has no branch, tag or commit '-gone'" in fault(folder, "-gone").what


def test_a_run_on_main_compares_with_the_commit_before(folder: Path) -> None:
    first = commit(folder, {"train.py": "1"})
    commit(folder, {"train.py": "2"})
    baseline = choose_baseline(open_repository(folder), "main")
    assert baseline.commit == first
    assert "first parent" in baseline.why


def test_uncommitted_changes_on_main_are_compared_with_head(folder: Path) -> None:
    commit(folder, {"train.py": "1"})
    second = commit(folder, {"train.py": "2"})
    (folder / "train.py").write_text("3")
    (folder / "new.py").write_text("4")
    baseline = choose_baseline(open_repository(folder), "main")
    assert baseline.commit == second
    assert "1 uncommitted change " in baseline.why


def test_untracked_python_alone_does_not_make_head_the_baseline(folder: Path) -> None:
    first = commit(folder, {"train.py": "1"})
    commit(folder, {"train.py": "2"})
    (folder / "new.py").write_text("4")
    assert open_repository(folder).changed_files() == ()
    assert choose_baseline(open_repository(folder), "main").commit == first


def test_a_merge_on_main_is_compared_with_what_main_was(folder: Path) -> None:
    commit(folder, {"a.py": "1"})
    git(folder, "checkout", "-q", "-b", "side")
    commit(folder, {"b.py": "1"})
    git(folder, "checkout", "-q", "main")
    before = commit(folder, {"a.py": "2"})
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "side")
    assert choose_baseline(open_repository(folder), "main").commit == before


def test_branch_and_detached_head_are_told(folder: Path) -> None:
    head = commit(folder, {"a.py": "1"})
    repository = open_repository(folder)
    assert (repository.branch(), repository.head()) == ("main", head)
    git(folder, "checkout", "-q", "--detach")
    assert (repository.branch(), repository.head()) == (None, head)


def test_a_detached_head_has_a_baseline_too(folder: Path, branched: tuple[str, str, str]) -> None:
    git(folder, "checkout", "-q", "--detach")
    git(folder, "branch", "-q", "-D", "faster")
    assert choose_baseline(open_repository(folder), "main").commit == branched[0]


def test_names_with_spaces_and_other_letters_are_told_as_they_are(folder: Path) -> None:
    commit(folder, {"a file.py": "1", "größe.txt": "1"})
    (folder / "a file.py").write_text("2")
    (folder / "größe.txt").write_text("2")
    assert open_repository(folder).changed_files() == ("a file.py", "größe.txt")


def test_a_branch_that_only_the_remote_has_is_found(tmp_path: Path, folder: Path) -> None:
    first = commit(folder, {"a.py": "1"})
    git(tmp_path, "clone", "-q", folder, "clone")
    clone = tmp_path / "clone"
    git(clone, "checkout", "-q", "-b", "mine")
    commit(clone, {"a.py": "2"})
    git(clone, "branch", "-q", "-D", "main")
    baseline = choose_baseline(open_repository(clone), "main")
    assert baseline.commit == first
    assert "origin/main" in baseline.why


def test_a_tag_and_a_commit_name_a_baseline(folder: Path) -> None:
    first = commit(folder, {"a.py": "1"})
    git(folder, "tag", "-a", "-m", "release", "v1")
    commit(folder, {"a.py": "2"})
    repository = open_repository(folder)
    assert repository.resolve("v1").commit == first
    assert repository.resolve(first[:8]).commit == first
    assert choose_baseline(repository, "HEAD~1").commit == first


@pytest.mark.parametrize("ref", ["mian", "", "--all", "main..HEAD", "a b"])
def test_an_unknown_ref_is_named(folder: Path, ref: str) -> None:
    commit(folder, {"a.py": "1"})
    error = fault(folder, ref)
    assert repr(ref) in error.what
    assert error.code == ExitCode.USAGE


@pytest.mark.parametrize("ref", ["main", "HEAD", "v1"])
def test_a_shallow_clone_says_how_to_get_the_rest(tmp_path: Path, folder: Path, ref: str) -> None:
    commit(folder, {"a.py": "1"})
    git(folder, "tag", "v1")
    commit(folder, {"a.py": "2"})
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{folder}", "clone")
    error = fault(tmp_path / "clone", ref)
    assert "shallow" in error.what
    assert "git fetch --unshallow" in error.todo
    assert "fetch-depth: 0" in error.todo
    assert error.code == ExitCode.NO_BASELINE


def test_a_shallow_clone_that_misses_the_merge_base_says_so(
    tmp_path: Path, folder: Path, branched: tuple[str, str, str]
) -> None:
    words = ("--depth", "1", "--no-single-branch", f"file://{folder}", "clone")
    git(tmp_path, "clone", "-q", *words)
    assert "shallow" in fault(tmp_path / "clone", "origin/main").what


def test_a_first_commit_has_nothing_to_compare_with(folder: Path) -> None:
    commit(folder, {"a.py": "1"})
    error = fault(folder)
    assert "first commit" in error.what
    assert error.code == ExitCode.NO_BASELINE


def test_a_repository_without_commits_says_so(folder: Path) -> None:
    assert "no commits yet" in fault(folder).what


def test_histories_that_never_met_are_told(folder: Path) -> None:
    commit(folder, {"a.py": "1"})
    git(folder, "checkout", "-q", "--orphan", "other")
    commit(folder, {"a.py": "2"})
    assert "no commit in common" in fault(folder).what


def test_a_folder_without_a_repository_is_named(tmp_path: Path) -> None:
    assert str(tmp_path) in fault(tmp_path).what


def test_a_bare_repository_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare")
    assert "no working tree" in fault(tmp_path / "bare").what


def test_a_machine_without_git_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    assert "git cannot be run" in fault(folder).what


def test_a_repository_of_somebody_else_is_told_with_the_cure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(folder, {"a.py": "1"})
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    error = fault(folder)
    assert "does not trust" in error.what
    assert error.todo.endswith(f"git config --global --add safe.directory {folder}")


def test_inside_a_hook_the_folder_decides_and_not_the_hooks_variables(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = commit(folder, {"a.py": "1"})
    hooked = new_repository(tmp_path / "hooked")
    commit(hooked, {"b.py": "1"})
    monkeypatch.setenv("GIT_DIR", str(hooked / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(hooked / ".git" / "index"))
    repository = open_repository(folder)
    assert (repository.root, repository.head()) == (folder, head)
    assert repository.changed_files() == ()


def test_commits_of_a_range_come_oldest_first(folder: Path) -> None:
    first, *later = [commit(folder, {"a.py": str(n)}) for n in range(4)]
    repository = open_repository(folder)
    assert repository.commits_between(first, "main") == tuple(later)
    assert repository.commits_between("main", "main") == ()


def test_commits_of_a_merged_branch_come_before_the_merge(folder: Path) -> None:
    first = commit(folder, {"a.py": "1"})
    git(folder, "checkout", "-q", "-b", "side")
    inner = [commit(folder, {"b.py": str(n)}) for n in range(2)]
    git(folder, "checkout", "-q", "main")
    own = commit(folder, {"a.py": "2"})
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "side")
    repository = open_repository(folder)
    merge = repository.head()
    every = repository.commits_between(first, "main")
    assert set(every) == {*inner, own, merge}
    assert every.index(inner[0]) < every.index(inner[1]) < every.index(merge)


def test_a_repository_may_have_a_line_break_in_its_name(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "re\npo")
    opened = open_repository(folder)
    assert (opened.root, opened.common) == (folder, folder / ".git")


def test_paths_are_pythons_own_whatever_the_locale(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "größe")
    commit(folder, {"ä.py": "1"})
    (folder / "ä.py").write_text("")
    asked = (
        "from pathlib import Path\n"
        "from gpurun.bench.trees.git import open_repository\n"
        "found = open_repository(Path.cwd())\n"
        "assert found.root == Path.cwd() and found.common.is_dir()\n"
        "assert (found.root / found.changed_files()[0]).is_file()\n"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **plain}
    subprocess.run([sys.executable, "-c", asked], cwd=folder, env=environment, check=True)
