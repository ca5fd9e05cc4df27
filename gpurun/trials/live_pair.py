"""A live pair: two launches that take turns of a few steps, one frozen while the other trains.

What both sides share (a busy host above all) hits neighbouring turns alike and cancels in their
ratio. Duet benchmarking: Bulej et al., ICPE 2020 (arXiv 2001.05811).
"""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpurun.records.turns import ANSWERS, ORDERS, Turn, TurnOrder
from gpurun.trials.freezer import Freezer

LEAST_STEPS = 5
"""Counted steps of a turn at least."""
LEAST_NS = 15_000_000
"""A turn's counted time at least: shorter ones measure the hand-over."""
HANDOVER_SHARE = 0.1
"""Hand-overs may take this share of a turn; longer ones lengthen the turns."""
POLL_SECONDS = 0.2


class Running(Protocol):
    """A launched process. `poll` gives its exit code, None while it runs."""

    pid: int

    def poll(self) -> int | None:
        """The exit code, None while it runs."""


class SideEnded(Exception):
    """A side came to its end or answered no more. `exit_code` is None where it was silent."""

    def __init__(self, name: str, exit_code: int | None) -> None:
        self.name, self.exit_code = name, exit_code
        how = "gave no sign of life" if exit_code is None else f"ended with exit code {exit_code}"
        super().__init__(f"{name} {how} before the pair was measured")


@dataclass(frozen=True)
class Round:
    """One turn of each side, in the order of the pair."""

    first: Turn
    second: Turn


def make_fifos(control: Path) -> None:
    """The two FIFOs of a side, made before it is launched."""
    control.mkdir(parents=True, exist_ok=True)
    for name in (ORDERS, ANSWERS):
        os.mkfifo(control / name)


class Side:
    """One launch of a live pair. It is frozen from its first answer on, but for its turns.

    `patience_seconds`: so long a side may take to its first answer, and in a turn.
    """

    def __init__(self, name: str, process: Running, control: Path, patience_seconds: float) -> None:
        self.name = name
        self._process = process
        self._patience = patience_seconds
        self._freezer = Freezer(process.pid)
        self._orders = os.open(control / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(control / ANSWERS, os.O_RDWR | os.O_CLOEXEC)

    def await_ready(self) -> None:
        """Wait until it is warmed up, and freeze it; `SideEnded` if it never is."""
        self._answer()
        self._freezer.freeze()

    def take(self, order: TurnOrder) -> Turn:
        """One turn; `SideEnded` if it ends or is silent."""
        self._freezer.thaw()
        os.write(self._orders, order.line())
        turn = self._answer()
        self._freezer.freeze()
        return turn

    def end(self) -> None:
        """Have it leave at its step; it ends by itself soon after."""
        os.write(self._orders, TurnOrder(0, 0).line())
        self._freezer.thaw()

    def close(self) -> None:
        """Leave nothing frozen behind."""
        self._freezer.thaw()
        os.close(self._orders)
        os.close(self._answers)

    def _answer(self) -> Turn:
        line, deadline = b"", time.monotonic() + self._patience
        while not line.endswith(b"\n"):
            if select.select([self._answers], [], [], POLL_SECONDS)[0]:
                line += os.read(self._answers, 64)
            elif (code := self._process.poll()) is not None:
                raise SideEnded(self.name, code)
            elif time.monotonic() > deadline:
                raise SideEnded(self.name, None)
        return Turn.read(line)


def take_turns(
    sides: tuple[Side, Side], draws: random.Random, enough: Callable[[Sequence[Round]], bool]
) -> list[Round]:
    """Let two sides that are ready take turns, in random order, until `enough` says so.

    Both get equal time, not equal steps. Turns grow until hand-overs take less than a tenth.
    """
    rounds: list[Round] = []
    nanoseconds = LEAST_NS
    while not enough(rounds):
        order = TurnOrder(nanoseconds, LEAST_STEPS)
        began = time.perf_counter_ns()
        turns: dict[int, Turn] = {}
        for number in draws.sample((0, 1), 2):
            turns[number] = sides[number].take(order)
        took = time.perf_counter_ns() - began
        rounds.append(Round(turns[0], turns[1]))
        counted = sum(turn.nanoseconds for turn in turns.values())
        # the first step of a turn is not counted and no hand-over
        uncounted = sum(turn.nanoseconds // turn.steps for turn in turns.values())
        handover = max(0, took - counted - uncounted) // 2
        longest = max(turn.nanoseconds // turn.steps for turn in turns.values())
        nanoseconds = max(nanoseconds, LEAST_STEPS * longest, int(handover / HANDOVER_SHARE))
    return rounds
