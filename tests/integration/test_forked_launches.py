"""Launches of tests that are forks print, end and are recorded as those that are started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Gpurun, without_verdict
from tests.forked import NURSERY
from tests.integration.tunings import training

ENDINGS = """
import os, signal
print(sys.argv, __file__, __name__, sorted(vars(sys.modules["__main__"])), flush=True)
print("to stderr", file=sys.stderr)
HOW
"""
ALIKE = ("status", "steps", "command", "hook_errors")


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("{}['no such key']", 1),
        pytest.param("sys.exit('a message')", 1, marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", 143, marks=pytest.mark.slow),
        pytest.param("raise KeyboardInterrupt", 130, marks=pytest.mark.slow),
    ],
)
def test_a_fork_ends_as_a_process_that_was_started(
    tmp_path: Path, gpurun: Gpurun, clean_environment: dict[str, str], how: str, code: int
) -> None:
    (tmp_path / "train.py").write_text("import sys\n" + training(20) + ENDINGS.replace("HOW", how))
    started = gpurun("--quiet", "--json", "started.json", "train.py", "--lr", "1")
    words = ("--quiet", "--json", "forked.json", "train.py", "--lr", "1")
    forked = NURSERY.launch(words, tmp_path, clean_environment)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.returncode == code
    assert without_verdict(forked.stderr) == without_verdict(started.stderr)
    one, other = (json.loads((tmp_path / f"{x}.json").read_text()) for x in ("started", "forked"))
    if code == 143:  # such a death loses the steps that were not yet written: the last few
        for document in (one, other):
            assert 10 <= document.pop("steps") <= 20
            document["steps"] = "written"
    assert [other[key] for key in ALIKE] == [one[key] for key in ALIKE]
