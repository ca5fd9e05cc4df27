"""A script cannot tell the hooks from plain python: it prints, raises and saves the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.once import once

SCRIPT = Path(__file__).with_name("runtime_transparency.py")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr under python and under gpurun, addresses left out."""
    return once(tmp_path_factory, "transparency", both)


def both(folder: Path) -> list[tuple[int, str, str]]:
    """The script under plain python, then under gpurun."""
    (folder / "script.py").write_text(SCRIPT.read_text())
    (folder / "broken_module.py").write_text("raise LookupError('while importing')\n")
    found = []
    for words in ([], ["-m", "gpurun", "--quiet"]):
        done = subprocess.run(
            [sys.executable, *words, "script.py", "argument"],
            cwd=folder,
            env={**_environment(), "PYTHONPATH": str(SCRIPT.parents[2])},
            capture_output=True,
            timeout=300,
            check=False,
        )
        found.append((done.returncode, _stable(done.stdout), _stable(done.stderr)))
    return found


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("GPURUN_")}


def _stable(output: bytes) -> str:
    return re.sub(r"0x[0-9a-f]+|\(pid[ =]\d+\)", "", output.decode())


def test_the_script_prints_the_same(outputs: list[tuple[int, str, str]]) -> None:
    python, gpurun = outputs
    assert "goodbye" in python[1]  # it ran to its end
    assert gpurun[1] == python[1]


def test_warnings_and_the_last_traceback_are_the_same(outputs: list[tuple[int, str, str]]) -> None:
    python, gpurun = outputs
    assert python[2].endswith("Stop: at the end\n")
    closing = gpurun[2].splitlines(keepends=True)[-1]  # the one line that is ours
    assert closing.startswith("verdict=failed")
    assert gpurun[2].removesuffix(closing) == python[2]
    assert gpurun[0] == python[0] == 1
