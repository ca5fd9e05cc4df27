"""A side whose processes end or answer while it is stopped and asked."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpurun.pairs.side import Freezer, PairFailed, Side, tree_below
from gpurun.records.messages.turns import ANSWERS, Turn
from gpurun.trials.turn_fifos import make_fifos


def test_a_process_that_ends_while_the_tree_is_read_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(path: object) -> Any:
        raise ProcessLookupError(path)

    monkeypatch.setattr(os, "listdir", ended)
    monkeypatch.setattr(os, "scandir", ended)
    assert tree_below(os.getpid()) == []


def test_a_process_of_another_user_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def refused(pid: int, number: int) -> None:
        asked.append((pid, number))
        raise PermissionError(pid)

    monkeypatch.setattr(os, "kill", refused)
    Freezer(os.getpid()).freeze()
    assert (os.getpid(), signal.SIGSTOP) in asked


def test_a_second_process_that_is_ready_where_a_turn_is_due_is_no_side(tmp_path: Path) -> None:
    """Its answer counts no step: a step's time cannot be made of it."""
    make_fifos(tmp_path)
    process: Any = subprocess.Popen(["sleep", "60"])
    process.adopter = None
    answers = os.open(tmp_path / ANSWERS, os.O_RDWR)
    try:
        with closing(Side("first", process, tmp_path, 10.0)) as one:
            os.write(answers, Turn(0, 0).line())
            one.await_ready()
            os.write(answers, Turn(0, 0).line())
            with pytest.raises(PairFailed, match="several processes of first train"):
                one.take(1, one)
    finally:
        os.close(answers)
        process.kill()
        process.wait()
