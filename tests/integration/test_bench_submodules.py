"""The submodules of a side, from the user's own repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from tests.integration.worktree_sides import assert_nothing_left, both, two_commits
from tests.repositories import commit, git, new_repository, state

pytestmark = pytest.mark.usefixtures("settings_of_nobody")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_commits(tmp_path)


def test_submodules_that_git_would_fill_by_itself_are_filled(folder: Path) -> None:
    library = new_repository(folder.parent / "library")
    commit(library, {"lib.py": "library"})
    git(folder, "submodule", "--quiet", "add", library, "lib")
    git(folder, "commit", "-q", "-m", "library")
    commit(folder, {"scripts/train.py": "newer"})
    git(folder, "config", "submodule.recurse", "true")
    with both(folder) as sides:
        assert (sides.baseline.folder / "lib/lib.py").read_text() == "library"
    assert_nothing_left(folder)


def test_a_submodule_is_filled_without_network_and_its_own_too(
    tmp_path: Path, folder: Path
) -> None:
    inner, outer = new_repository(tmp_path / "inner"), new_repository(tmp_path / "outer")
    commit(inner, {"deep.py": "deep"})
    git(outer, "submodule", "add", "-q", inner, "inner")
    commit(outer, {"lib.py": "old"})
    git(folder, "submodule", "add", "-q", "--name", "a library", outer, "libs/outer")
    git(folder, "submodule", "update", "-q", "--init", "--recursive")
    commit(folder, {})
    lib = folder / "libs" / "outer"
    commit(lib, {"lib.py": "new"})
    git(folder, "add", "libs/outer")
    commit(folder, {})
    for gone in (inner, outer):
        gone.rename(gone.with_name(f"{gone.name}-away"))
    before = state(folder / ".git" / "modules"), (folder / ".git" / "config").read_bytes()
    with both(folder) as sides:
        libs = sides.baseline.tree.root / "libs" / "outer"
        assert (libs / "lib.py").read_text() == "old"
        assert (libs / "inner" / "deep.py").read_text() == "deep"
        assert git(sides.baseline.tree.root, "status", "--porcelain") == ""
    assert (state(folder / ".git" / "modules"), (folder / ".git" / "config").read_bytes()) == before
    assert_nothing_left(folder)


def test_a_submodule_that_was_never_fetched_is_left_out_and_told(
    tmp_path: Path, folder: Path
) -> None:
    library = new_repository(tmp_path / "library")
    commit(library, {"lib.py": "1"})
    git(folder, "submodule", "add", "-q", library, "library")
    commit(folder, {})
    commit(folder, {})
    git(tmp_path, "clone", "-q", folder, "clone")
    with both(tmp_path / "clone") as sides:
        assert list((sides.baseline.tree.root / "library").iterdir()) == []
        assert "library is empty" in sides.notes[0]


@pytest.mark.parametrize("name", ["../../evil", "{tmp_path}/evil"])
def test_a_submodules_name_leads_to_no_folder_outside_of_the_repository(
    tmp_path: Path, folder: Path, name: str
) -> None:
    """git itself refuses such names: whoever wrote the commit could choose the settings there."""
    evil = commit(new_repository(tmp_path / "evil-work"), {"inside": "1"})
    git(tmp_path, "clone", "-q", "--bare", "evil-work", "project/evil")
    git(tmp_path, "clone", "-q", "--bare", "evil-work", "evil")
    (folder / ".git" / "modules").mkdir()
    told = f'[submodule "{name.format(tmp_path=tmp_path)}"]\n\tpath = sub\n\turl = x\n'
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{evil},sub")
    commit(folder, {".gitmodules": told})
    commit(folder, {"scripts/train.py": "newer"})
    with both(folder) as sides:
        assert sides.notes == ("submodule sub is empty, as it is in your tree",)


def test_a_submodules_commit_that_is_not_here_is_named(tmp_path: Path, folder: Path) -> None:
    library = new_repository(tmp_path / "library")
    commit(library, {"lib.py": "1"})
    git(folder, "submodule", "add", "-q", library, "library")
    git(folder, "update-index", "--cacheinfo", f"160000,{'1' * 40},library")
    git(folder, "commit", "-q", "-m", "a commit that nobody has")
    commit(folder, {})
    with pytest.raises(GpurunError, match="111111111 of submodule library") as caught, both(folder):
        pass
    assert "fetch origin" in caught.value.todo
    assert_nothing_left(folder)
