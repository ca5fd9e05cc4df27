"""A line planted in a module: where it may stand, and in which file it does."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpurun.bench.selftest.planted_module import plant_in_tree
from gpurun.bench.trees.installed_packages import Tree
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.events import OriginsEvent


def loaded(*own: tuple[str, Path]) -> list[OriginsEvent]:
    """What a launch loaded of its own tree."""
    return [OriginsEvent(tuple((n, str(f)) for n, f in own), (), (), (), complete=True)]


@pytest.mark.parametrize(
    ("text", "before"),
    [
        (b"x = 1\n", b""),
        (b'"""What it is."""\nfrom __future__ import annotations\nx = 1\n', b"annotations\n"),
        (b'"""Two\nlines."""\r\nx = 1\r\n', b'lines."""\r\n'),
        (b"#!/usr/bin/python\n# coding: latin-1\nx = '\xe9'\n", b"latin-1\n"),
        (b"from __future__ import annotations", b"annotations\n"),
    ],
)
def test_the_line_stands_where_code_may_first_stand(
    tmp_path: Path, text: bytes, before: bytes
) -> None:
    module = tmp_path / "model.py"
    module.write_bytes(text)
    found = plant_in_tree(Tree(tmp_path), tmp_path / "train.py", loaded(("model", module)), 0.5)
    assert found == module
    head, _, rest = module.read_bytes().partition(b"__import__(")
    assert head.endswith(before)
    call, _, tail = rest.partition(b"\n")
    assert b".plant(0.5, __file__)" in call
    assert (head + tail).rstrip() == text.rstrip()
    ast.parse(module.read_bytes())


def test_the_first_module_that_takes_it_is_slowed_down_and_nothing_outside_of_the_tree(
    tmp_path: Path,
) -> None:
    tree = tmp_path / "tree"
    names = ("tree/train.py", "tree/package/__init__.py", "tree/old.py", "tree/net.py", "other.py")
    for name, text in zip(names, ("y = 1\n", "", "print 1\n", "x = 1\n", "z = 1\n"), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    files = [("__main__", tree / "train.py"), ("other", tmp_path / "other.py")]
    files += [("package", tree / "package/__init__.py"), ("old", tree / "old.py")]
    script = tree / "train.py"
    found = plant_in_tree(Tree(tree), script, loaded(*files, ("net", tree / "net.py")), 0.1)
    assert found == tree / "net.py"
    assert (tmp_path / "other.py").read_text() == "z = 1\n"

    assert plant_in_tree(Tree(tree), script, loaded(*files), 0.1) == script
    (tree / "linked.py").symlink_to(tmp_path / "other.py")
    assert plant_in_tree(Tree(tree), tree / "linked.py", loaded(("net", tree / "net.py")), 0.1)
    with pytest.raises(GpurunError):
        plant_in_tree(Tree(tree), tree / "linked.py", loaded(*files[:2]), 0.1)
    assert (tmp_path / "other.py").read_text() == "z = 1\n"
    script.write_text("print 1\n")
    with pytest.raises(GpurunError) as raised:
        plant_in_tree(Tree(tree), script, loaded(*files), 0.1)
    assert raised.value.code is ExitCode.BENCHMARK_FAILED
