"""A slow test names the quick one that takes the same path."""

from __future__ import annotations

import re

from tests.conftest import REPOSITORY

TESTS = REPOSITORY / "tests"
TWIN = re.compile(r"# quick twin: (.*)")
FILE = re.compile(r"[\w/]+\.py")


def test_the_file_of_each_quick_twin_exists() -> None:
    missing = [
        f"{path.name}: {name}"
        for path in TESTS.rglob("test_*.py")
        for comment in TWIN.findall(path.read_text())
        for name in FILE.findall(comment)
        if not ((path.parent / name).exists() or (TESTS / name).exists())
    ]
    assert missing == []
