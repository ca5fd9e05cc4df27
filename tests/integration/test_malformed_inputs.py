"""Damaged files of every kind, fed to the commands that read them: a sample of a larger run.

`python scripts/malformed_inputs.py` feeds as many as wanted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.malformed_inputs import FAULTS, cases, judged

PAIRS = 33
"""Of a file and a command."""


@pytest.mark.parametrize("each", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_malformed_file_is_one_clear_line_and_never_a_traceback(
    each: int, tmp_path: Path
) -> None:
    fed = list(cases(tmp_path, each * PAIRS, seed=21))
    assert len(fed) == each * PAIRS
    assert [(one.damage, one.output) for one in fed if one.outcome in FAULTS] == []
    assert sum(one.outcome == "refused" for one in fed) > len(fed) / 3


@pytest.mark.parametrize(
    ("code", "output", "outcome"),
    [
        (None, "", "hang"),
        (-9, "", "died"),
        (70, "gpurun: internal error: x\nverdict=internal_error exit=70", "internal error"),
        (1, "Traceback (most recent call last):\nverdict=ok exit=1", "traceback"),
        (0, "page written", "no clear line"),
        (2, "verdict=error exit=2", "no clear line"),
        (2, "gpurun: x is no trace\nverdict=error exit=2", "refused"),
        (0, "gpurun: note: x is damaged\nverdict=ok exit=0", "named"),
        (0, "gpurun: fast\nverdict=ok exit=0", "nonsense"),
    ],
)
def test_the_fuzzer_tells_faults_from_clear_lines(
    code: int | None, output: str, outcome: str
) -> None:
    assert judged(code, output, output, unreadable=True) == outcome
