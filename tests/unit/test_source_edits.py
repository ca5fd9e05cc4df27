"""Edits of a user's source: where they go, and that all else stays as it is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpurun.eject.source_edits import SourceEdits
from gpurun.records.messages.training_events import SiteKind, SourceSiteEvent


def edits_of(folder: Path, source: str) -> SourceEdits:
    path = folder / "train.py"
    path.write_bytes(source.encode())
    return SourceEdits(path)


def call_named(source: str, name: str) -> SourceSiteEvent:
    """The site of the call `name(...)`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
            place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
            return SourceSiteEvent(SiteKind.LOADER, "train.py", *place)
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", "f(n=4, p=True)"),
        ("f(x)", "f(x, n=4, p=True)"),
        ("f(x, n=0)", "f(x, n=4, p=True)"),
        ("f(n=0, p=False)", "f(n=4, p=True)"),
        ("f(x,\n  y=1,  # why\n)", "f(x,\n  y=1, n=4, p=True,  # why\n)"),
        ("f(x for x in y)", "f((x for x in y), n=4, p=True)"),
        ("f(x, **k)", 'f(x, **{**k, "n": 4, "p": True})'),
        ("f(x, **k, n=0)", 'f(x, **{**k, "p": True}, n=4)'),
        ('g("ä", f(x))', 'g("ä", f(x, n=4, p=True))'),
    ],
)
def test_keywords_are_added_or_replaced(tmp_path: Path, before: str, after: str) -> None:
    edits = edits_of(tmp_path, before)
    call = edits.call_at(call_named(before, "f"))
    assert call is not None
    edits.set_keywords(call, {"n": "4", "p": "True"})
    assert edits.result().decode() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(d, 8, True, None, None, 0)", "f(d, 8, True, None, None, 4, pin_memory=True)"),
        ("f(d, 1, 1, a, b, 0, c, False)", "f(d, 1, 1, a, b, 4, c, True)"),
        ("f(*given)", "f(*given, num_workers=4, pin_memory=True)"),
    ],
)
def test_arguments_by_position_are_replaced(tmp_path: Path, before: str, after: str) -> None:
    edits = edits_of(tmp_path, before)
    call = edits.call_at(call_named(before, "f"))
    assert call is not None
    edits.set_keywords(call, {"num_workers": "4", "pin_memory": "True"})
    assert edits.result().decode() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = model(x)", "y = half(model, x)"),
        ("y = self.net(x=1)", "y = half(self.net, x=1)"),
        ("y = model (\n    x,\n)", "y = half(model, \n    x,\n)"),
        ("y = model()", "y = half(model)"),
        ("loss = f(model(x), y)", "loss = f(half(model, x), y)"),
    ],
)
def test_a_call_is_handed_to_a_function(tmp_path: Path, before: str, after: str) -> None:
    edits = edits_of(tmp_path, before)
    name = "self.net" if "self" in before else "model"
    call = edits.call_at(call_named(before, name))
    assert call is not None
    edits.wrap_call(call, "half")
    assert edits.result().decode() == after


def test_a_statement_follows_in_the_same_block(tmp_path: Path) -> None:
    source = (
        "def f():\n    if a:\n        opt = Adam(\n            p,\n        )  # fast\n    go()\n"
    )
    edits = edits_of(tmp_path, source)
    site = call_named(source, "Adam")
    assert edits.takes_statement_after(site)
    edits.insert_after(site, "model.compile()")
    after = source.replace("# fast\n", "# fast\n        model.compile()\n")
    assert edits.result().decode() == after


@pytest.mark.parametrize("source", ["if a: opt = Adam(p)\n", "opt = Adam(p); go()\n"])
def test_a_statement_that_shares_its_line_takes_none_after_it(tmp_path: Path, source: str) -> None:
    assert not edits_of(tmp_path, source).takes_statement_after(call_named(source, "Adam"))


def test_a_call_that_stands_alone_becomes_pass(tmp_path: Path) -> None:
    source = "for x in y:\n    cuda.synchronize()\n"
    edits = edits_of(tmp_path, source)
    assert edits.drop_statement(call_named(source, "cuda.synchronize"))
    assert edits.result() == b"for x in y:\n    pass\n"


def test_a_call_whose_value_is_used_stays(tmp_path: Path) -> None:
    source = "t = wait(cuda.synchronize())\n"
    edits = edits_of(tmp_path, source)
    assert not edits.drop_statement(call_named(source, "cuda.synchronize"))
    assert edits.result().decode() == source


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Doc."""\nimport torch\nx = 1\n', '"""Doc."""\nimport torch\nfast()\nx = 1\n'),
        ('"""Doc."""\nx = 1\n', '"""Doc."""\nimport torch\nfast()\nx = 1\n'),
        ("x = 1\n", "import torch\nfast()\nx = 1\n"),
        (
            "import os\nos.environ['A'] = '1'\nimport torch\nfrom torch import nn\nx = 1\n",
            "import os\nos.environ['A'] = '1'\nimport torch\nfrom torch import nn\nfast()\nx = 1\n",
        ),
        (
            "from torch import nn\nx = 1\n",
            "from torch import nn\nimport torch\nfast()\nx = 1\n",
        ),
        ("import torch", "import torch\nfast()"),
        ("import torch\r\nx = 1\r\n", "import torch\r\nfast()\r\nx = 1\r\n"),
        ("\ufeffimport torch\n", "\ufeffimport torch\nfast()\n"),
    ],
)
def test_what_needs_torch_follows_its_import(tmp_path: Path, before: str, after: str) -> None:
    edits = edits_of(tmp_path, before)
    edits.insert_after_imports(["import torch"], "fast()")
    assert edits.result().decode() == after


def test_without_columns_the_only_call_of_a_line_is_taken(tmp_path: Path) -> None:
    edits = edits_of(tmp_path, "a = f(1)\nb = f(g(2))\n")
    one = edits.call_at(SourceSiteEvent(SiteKind.LOADER, "train.py", 1, None, None, None))
    assert one is not None
    assert ast.unparse(one) == "f(1)"
    two = SourceSiteEvent(SiteKind.LOADER, "train.py", 2, None, None, None)
    assert edits.call_at(two) is None


@pytest.mark.parametrize("source", [b"\xff\xfe", b"def f(:\n", b"x = 1\0"])
def test_a_file_that_is_no_source_is_refused(tmp_path: Path, source: bytes) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(source)
    with pytest.raises(ValueError, match=r"."):
        SourceEdits(path)
