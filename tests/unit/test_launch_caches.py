"""Short launches compile once what they share, python's bytecode included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.launch import caches
from gpurun.launch.caches import for_short_launches


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that was installed without bytecode, in the part of torch."""
    site = tmp_path / "site"
    (site / "uncompiled").mkdir(parents=True)
    (site / "uncompiled" / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(caches, "LARGEST_IMPORT", "uncompiled")
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return site


def test_what_a_launch_compiles_is_there_for_the_next(package: Path, tmp_path: Path) -> None:
    user = {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    environment = for_short_launches(user, tmp_path / "cache")
    subprocess.run([sys.executable, "-c", "import uncompiled"], env=environment, check=True)
    assert [path.name for path in (tmp_path / "cache").rglob("*.pyc") if "uncompiled" in str(path)]
    assert not list(package.rglob("*.pyc"))


def test_bytecode_that_is_there_is_used_where_it_is(package: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(package)], check=True)
    user = {"PYTHONDONTWRITEBYTECODE": "1"}
    environment = for_short_launches(user, tmp_path)
    assert "PYTHONPYCACHEPREFIX" not in environment
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"


def test_another_interpreter_s_bytecode_is_its_own_affair(package: Path, tmp_path: Path) -> None:
    assert "PYTHONPYCACHEPREFIX" not in for_short_launches({}, tmp_path, "/elsewhere/bin/python")


def test_what_the_user_set_stays(package: Path, tmp_path: Path) -> None:
    user = {"TORCHINDUCTOR_CACHE_DIR": "/a", "PYTHONHASHSEED": "7", "PYTHONPYCACHEPREFIX": "/b"}
    assert for_short_launches(user, tmp_path) == user


def test_without_torch_there_is_nothing_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "LARGEST_IMPORT", "no_such_package_anywhere")
    assert set(for_short_launches({}, tmp_path)) == {"TORCHINDUCTOR_CACHE_DIR", "PYTHONHASHSEED"}
