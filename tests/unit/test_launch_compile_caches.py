"""Short launches compile once what they share, python's bytecode included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.launch import compile_caches
from gpurun.launch.compile_caches import shared_cache_environment


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that was installed without bytecode, in the part of torch."""
    site = tmp_path / "site"
    (site / "uncompiled").mkdir(parents=True)
    (site / "uncompiled" / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(site))
    (site / "uncompiled" / "later.py").write_text("VALUE = 2\n")
    monkeypatch.setattr(compile_caches, "PACKAGE", "uncompiled")
    monkeypatch.setattr(compile_caches, "MODULES", ("__init__.py", "later.py", "no_such_file.py"))
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return site


def test_what_a_launch_compiles_is_there_for_the_next(package: Path, tmp_path: Path) -> None:
    user = {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    environment = shared_cache_environment(user, tmp_path / "cache")
    subprocess.run([sys.executable, "-c", "import uncompiled"], env=environment, check=True)
    assert [path.name for path in (tmp_path / "cache").rglob("*.pyc") if "uncompiled" in str(path)]
    assert not list(package.rglob("*.pyc"))


def test_bytecode_that_is_there_is_used_where_it_is(package: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(package)], check=True)
    user = {"PYTHONDONTWRITEBYTECODE": "1"}
    environment = shared_cache_environment(user, tmp_path)
    assert "PYTHONPYCACHEPREFIX" not in environment
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"


def test_what_was_only_imported_in_part_is_compiled_once_more(
    package: Path, tmp_path: Path
) -> None:
    """A script that never compiled its model has not imported torch's compiler."""
    user = {"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", "import uncompiled"], env=user, check=True)
    assert list(package.rglob("__init__*.pyc"))
    assert "PYTHONPYCACHEPREFIX" in shared_cache_environment(user, tmp_path)


def test_bytecode_that_may_not_be_read_is_as_good_as_none(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", denied)
    assert "PYTHONPYCACHEPREFIX" in shared_cache_environment({}, tmp_path)


def test_python_that_is_told_to_write_none_writes_none(package: Path, tmp_path: Path) -> None:
    """With -B the launched one gets it too: another place would only hide what is there."""
    code = (
        "import sys; from pathlib import Path; from gpurun.launch import compile_caches;"
        "compile_caches.PACKAGE, compile_caches.MODULES = 'uncompiled', ('__init__.py',);"
        "print(compile_caches.ELSEWHERE in compile_caches.shared_cache_environment({}, Path('.')))"
    )
    here = str(Path(compile_caches.__file__).parents[2])
    env = {"PYTHONPATH": f"{package}:{here}", "PATH": "/usr/bin:/bin"}
    for flags, said in (((), "True"), (("-B",), "False")):
        ran = subprocess.run(
            [sys.executable, *flags, "-c", code],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == said


def test_another_interpreter_s_bytecode_is_its_own_affair(package: Path, tmp_path: Path) -> None:
    assert "PYTHONPYCACHEPREFIX" not in shared_cache_environment(
        {}, tmp_path, "/elsewhere/bin/python"
    )


def test_what_the_user_set_stays(package: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels" / "fxgraph").mkdir(parents=True)
    user = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kernels"),
        "PYTHONHASHSEED": "7",
        "PYTHONPYCACHEPREFIX": "/b",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    assert shared_cache_environment(user, tmp_path) == user


def test_without_torch_there_is_nothing_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_caches, "PACKAGE", "no_such_package_anywhere")
    assert set(shared_cache_environment({}, tmp_path)) == {
        "TORCHINDUCTOR_CACHE_DIR",
        "PYTHONHASHSEED",
    }


def test_a_folder_for_kernels_is_shared_unless_the_user_s_own_holds_some(tmp_path: Path) -> None:
    """A job script often names an empty one; kernels written there by a trial would be lost."""
    name, own, cache = compile_caches.KERNELS, tmp_path / "own", tmp_path / "cache"
    shared = str(cache / "inductor")
    for user in ({}, {name: ""}, {name: str(own)}):
        assert shared_cache_environment(user, cache)[name] == shared
    own.mkdir()
    assert shared_cache_environment({name: str(own)}, cache)[name] == shared
    in_place = shared_cache_environment({name: str(own)}, cache, isolated=False)
    assert in_place[name] == str(own)
    (own / "fxgraph").mkdir()
    assert shared_cache_environment({name: str(own)}, cache)[name] == str(own)
