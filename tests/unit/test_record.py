"""Records are what frozen dataclasses are, as far as anybody relies on it."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

import gpurun
from gpurun.records.record import record


@record
class Pair:
    """Two values."""

    first: int
    second: tuple[str, ...] = ()


@record
class Other:
    """As many."""

    first: int
    second: tuple[str, ...] = ()


def test_values_are_compared_hashed_copied_and_shown() -> None:
    one = Pair(1, ("a",))
    assert one == Pair(1, ("a",)) != Pair(1)
    assert one != Other(1, ("a",))
    assert {one, Pair(1, ("a",)), Pair(2)} == {one, Pair(2)}
    assert repr(one) == "Pair(first=1, second=('a',))"
    assert replace(one, first=3) == Pair(3, ("a",))
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert is_dataclass(Pair)
    assert [each.name for each in fields(Pair)] == ["first", "second"]


@pytest.mark.slow  # quick twin: none; mypy alone takes 20 s
def test_the_type_checker_lets_nobody_assign_to_one(tmp_path: Path) -> None:
    (tmp_path / "assigned.py").write_text(
        "from gpurun.records.record import record\n"
        "@record\nclass Pair:\n    first: int\n"
        "one = Pair(1)\n"
        "one.first = 2\n"
    )
    words = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "assigned.py"]
    environment = {**os.environ, "MYPYPATH": str(Path(gpurun.__file__).parents[1])}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert 'Property "first" defined in "Pair" is read-only' in done.stdout, done.stdout
