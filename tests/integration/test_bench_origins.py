"""Each side must run its own tree: every way in which it can load the other one is caught."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.side_setup import make_environment
from gpurun.errors import ExitCode
from tests.integration.side_launches import benchmark, faults, faults_under
from tests.repositories import commit, new_repository

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "pkg"
version = "0.1"
[tool.setuptools]
packages = ["pkg"]
"""
SETUP = "pip install -q --no-build-isolation --no-deps --disable-pip-version-check -e ."
PURELIB = 'import sysconfig; print(sysconfig.get_path("purelib"))'
SCRIPT = "from pkg import work; print(work.__file__)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "project")


def two_commits(folder: Path, files: dict[str, str]) -> None:
    commit(folder, files)
    commit(folder, {"changed.txt": "1"})


def wrong(folder: Path, *words: str, **env: str) -> dict[str, tuple[str, str]]:
    """The sides that did not run their own tree, with what is said; each is exit code 5."""
    found = faults(folder, words, benchmark(folder, env=env))
    assert all(code == ExitCode.BENCHMARK_FAILED for _, _, code in found.values())
    return {side: (what, todo) for side, (what, todo, _) in found.items()}


def users_environment(folder: Path) -> Path:
    """The python of a fresh environment."""
    return make_environment(folder.parent / "users", Tree(folder))


def packages(python: Path) -> Path:
    """The folder of packages of such an environment."""
    return next((python.parent.parent / "lib").glob("python*/site-packages"))


@pytest.mark.slow
def test_an_editable_install_is_caught_and_setup_cures_it(folder: Path) -> None:
    files = {"pyproject.toml": PYPROJECT, "scripts/train.py": SCRIPT}
    two_commits(folder, {**files, "pkg/__init__.py": "", "pkg/work.py": ""})
    python = users_environment(folder)
    subprocess.run([python, "-m", *SETUP.split()], cwd=folder, check=True, capture_output=True)

    found = faults_under(python, folder, ["scripts/train.py"])
    assert set(found) == {"baseline"}
    what, todo, code = found["baseline"]
    assert code == ExitCode.BENCHMARK_FAILED
    assert f"loaded pkg from {folder / 'pkg/__init__.py'}, which is the current tree" in what
    assert "__editable___pkg_0_1_finder.py (an editable install) leads there" in todo
    assert 'setup = "pip install -e ."' in todo
    assert 'PYTHONPATH = "."' in todo

    assert faults_under(python, folder, ["scripts/train.py"], setup=SETUP) == {}
    users = subprocess.check_output([python, "-c", SCRIPT], cwd=folder.parent, text=True)
    assert users.strip() == str(folder / "pkg" / "work.py")  # as it was


def test_a_path_file_is_caught_and_pythonpath_cures_it(folder: Path) -> None:
    two_commits(
        folder, {"scripts/train.py": SCRIPT, "src/pkg/__init__.py": "", "src/pkg/work.py": ""}
    )
    python = users_environment(folder)
    (packages(python) / "__editable__.pkg-0.1.pth").write_text(f"{folder / 'src'}\n")
    _, todo, _ = faults_under(python, folder, ["scripts/train.py"])["baseline"]
    assert "__editable__.pkg-0.1.pth (an editable install) leads there" in todo
    assert 'PYTHONPATH = "src"' in todo
    assert faults_under(python, folder, ["scripts/train.py"], PYTHONPATH="src") == {}


def test_a_copy_in_the_users_environment_is_neither_sides_tree(folder: Path) -> None:
    two_commits(folder, {"scripts/train.py": "import pkg", "src/pkg/__init__.py": ""})
    python = users_environment(folder)
    metadata = packages(python) / "pkg-0.1.dist-info"  # as `pip install .` leaves it
    metadata.mkdir()
    (metadata / "RECORD").write_text("pkg/__init__.py,sha256=x,0\npkg-0.1.dist-info/RECORD,,\n")
    (metadata / "direct_url.json").write_text(json.dumps({"dir_info": {}, "url": folder.as_uri()}))
    (packages(python) / "pkg").mkdir()
    (packages(python) / "pkg" / "__init__.py").touch()
    found = faults_under(python, folder, ["scripts/train.py"])
    assert set(found) == {"baseline", "current"}
    for what, todo, code in found.values():
        assert "installed copy" in what
        assert 'PYTHONPATH = "src"' in todo
        assert code == ExitCode.BENCHMARK_FAILED
    copy_anew = f"cp -r {metadata} {metadata.parent / 'pkg'} $(python -c '{PURELIB}')"
    name_own = f"cd $(python -c '{PURELIB}')/pkg-0.1.dist-info && sed -i s,{folder},$OLDPWD, *.json"
    setup = f"{copy_anew} && {name_own}"
    assert faults_under(python, folder, ["scripts/train.py"], setup=setup) == {}


@pytest.mark.parametrize("words", [("train.py",), ("-m", "train"), ("-m", "pkg.main")])
def test_a_script_that_finds_its_modules_beside_it_runs_its_own_tree(
    folder: Path, words: tuple[str, ...]
) -> None:
    two_commits(
        folder, {"train.py": "import pkg.work", "pkg/work.py": "", "pkg/main.py": "import pkg.work"}
    )
    assert wrong(folder, *words) == {}


def test_a_script_that_imports_nothing_runs_its_own_tree(folder: Path) -> None:
    two_commits(folder, {"train.py": ""})
    assert wrong(folder, "train.py") == {}


def test_an_absolute_path_in_sys_path_is_caught(folder: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(folder / 'src')!r}); import pkg.work"
    two_commits(folder, {"train.py": script, "src/pkg/__init__.py": "", "src/pkg/work.py": ""})
    (what, todo) = wrong(folder, "train.py")["baseline"]
    assert "loaded pkg from" in what
    assert f"an absolute path, PYTHONPATH or a link leads to {folder / 'src'}: " in todo
    assert "Path(__file__)" in todo


def test_a_pythonpath_that_only_one_tree_has_is_caught(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_commits(folder, {"train.py": "import extra"})
    (folder / "made").mkdir()
    (folder / "made" / "extra.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(folder / "made"))
    (_, todo) = wrong(folder, "train.py")["baseline"]
    assert f"PYTHONPATH or a link leads to {folder / 'made'}" in todo


def test_a_part_of_a_namespace_package_from_the_other_tree_is_caught(folder: Path) -> None:
    script = f"import sys; sys.path.append({str(folder)!r}); import space.old, space.new"
    commit(folder, {"train.py": script, "space/old.py": ""})
    commit(folder, {"space/new.py": ""})
    found = wrong(folder, "train.py")
    assert set(found) == {"baseline"}
    assert "loaded space.new from" in found["baseline"][0]


@pytest.mark.parametrize(
    "script",
    [
        "import runpy; runpy.run_path({path!r}, run_name='__main__')",
        "import sys, runpy; sys.path.insert(0, {folder!r}); runpy.run_module('other')",
        "import importlib.util as u; s = u.spec_from_file_location('plugin', {path!r}); "
        "s.loader.exec_module(u.module_from_spec(s))",
        "import sys; sys.path.insert(0, {folder!r}); import other; del sys.modules['other']",
    ],
    ids=["run_path", "run_module", "plug-in", "forgotten module"],
)
def test_a_file_that_is_no_module_any_more_is_caught(folder: Path, script: str) -> None:
    other = folder / "tools" / "other.py"
    text = script.format(path=str(other), folder=str(other.parent))
    two_commits(folder, {"train.py": text, "tools/other.py": "x = 1"})
    found = wrong(folder, "train.py")
    assert set(found) == {"baseline"}
    assert str(other) in found["baseline"][0]


def test_a_link_among_the_packages_is_followed(folder: Path) -> None:
    two_commits(folder, {"scripts/train.py": "import pkg", "src/pkg/__init__.py": ""})
    python = users_environment(folder)
    (packages(python) / "pkg").symlink_to(folder / "src" / "pkg")
    what, todo, _ = faults_under(python, folder, ["scripts/train.py"])["baseline"]
    assert "current tree" in what
    assert f"a link leads to {packages(python) / 'pkg'}" in todo


@pytest.mark.parametrize(
    ("start_method", "end"), [("fork", "os.kill(os.getpid(), 9)"), ("spawn", "os._exit(0)")]
)
def test_a_child_that_loads_the_other_tree_is_caught_however_it_ends(
    folder: Path, start_method: str, end: str
) -> None:
    script = (
        "import multiprocessing as mp, os, sys\n"
        "def work():\n"
        f"    sys.path.insert(0, {str(folder / 'src')!r})\n"
        f"    import late\n    {end}\n"
        "if __name__ == '__main__':\n"
        "    child = mp.get_context(sys.argv[1]).Process(target=work)\n"
        "    child.start(); child.join()\n"
    )
    two_commits(folder, {"train.py": script, "src/late.py": ""})
    assert set(wrong(folder, "train.py", start_method)) == {"baseline"}


def test_a_launch_without_a_record_proves_nothing(folder: Path) -> None:
    two_commits(folder, {"train.py": "import os; os._exit(0)"})
    found = wrong(folder, "train.py")
    assert set(found) == {"baseline", "current"}
    assert "has no record of its imports" in found["current"][0]


def test_an_environment_inside_of_the_repository_is_not_of_its_tree(folder: Path) -> None:
    two_commits(folder, {"train.py": "import library, PIL"})
    python = make_environment(folder / ".venv", Tree(folder))
    (packages(python) / "library.py").touch()
    assert faults_under(python, folder, ["train.py"]) == {}


def test_a_failing_import_reads_as_without_us(folder: Path) -> None:
    script = (
        "import runpy, traceback\n"
        "for load in (lambda: __import__('broken'), lambda: runpy.run_path('broken.py')):\n"
        "    try:\n        load()\n"
        "    except SyntaxError:\n        assert 'origins' not in traceback.format_exc()\n"
        "    else:\n        raise SystemExit(1)\n"
    )
    two_commits(folder, {"train.py": script, "broken.py": "x ="})
    assert wrong(folder, "train.py") == {}
