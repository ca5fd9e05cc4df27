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
MOST_NS = 500_000_000
"""Longer turns see other disturbances than their neighbours."""
RECENT = 8
"""The usual hand-over is the median of so many."""
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

    `patience_seconds`: so long a side may take to its first answer, and in a turn. `least_steps`:
    of a turn; a side with loader workers needs as many as empty their stock twice, else the stock
    is measured. `while_waiting` is called a few times a second while an answer is awaited.
    """

    def __init__(
        self,
        name: str,
        process: Running,
        control: Path,
        patience_seconds: float,
        least_steps: int = LEAST_STEPS,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._process = process
        self._patience = patience_seconds
        self._least_steps = least_steps
        self._while_waiting = while_waiting
        self._freezer = Freezer(process.pid)
        self._orders = os.open(control / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(control / ANSWERS, os.O_RDWR | os.O_CLOEXEC)

    def await_ready(self) -> None:
        """Wait until it is warmed up, and freeze it; `SideEnded` if it never is."""
        self._answer()
        self._freezer.freeze()

    def take(self, nanoseconds: int) -> Turn:
        """One turn of so much counted time at least; `SideEnded` if it ends or is silent."""
        self._freezer.thaw()
        os.write(self._orders, TurnOrder(nanoseconds, self._least_steps).line())
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
                continue
            self._while_waiting()
            if (code := self._process.poll()) is not None:
                raise SideEnded(self.name, code)
            if time.monotonic() > deadline:
                raise SideEnded(self.name, None)
        return Turn.read(line)


def take_turns(
    sides: tuple[Side, Side], draws: random.Random, enough: Callable[[Sequence[Round]], bool]
) -> list[Round]:
    """Let two sides that are ready take turns, in random order, until `enough` says so.

    Both get equal time, not equal steps. Turns are as long as the usual hand-over asks for.
    """
    rounds: list[Round] = []
    handovers: list[int] = []
    nanoseconds = LEAST_NS
    while not enough(rounds):
        began = time.perf_counter_ns()
        turns: dict[int, Turn] = {}
        for number in draws.sample((0, 1), 2):
            turns[number] = sides[number].take(nanoseconds)
        took = time.perf_counter_ns() - began
        rounds.append(Round(turns[0], turns[1]))
        handovers.append(_handover(took, rounds[-1]))
        longest = max(turn.nanoseconds // turn.steps for turn in turns.values())
        usual = sorted(handovers[-RECENT:])[len(handovers[-RECENT:]) // 2]
        nanoseconds = max(LEAST_NS, LEAST_STEPS * longest, int(usual / HANDOVER_SHARE))
        nanoseconds = min(nanoseconds, max(MOST_NS, LEAST_STEPS * longest))
    return rounds


def _handover(took: int, both: Round) -> int:
    """What one hand-over took; the first step of a turn is neither counted nor a part of it."""
    turns = (both.first, both.second)
    counted = sum(turn.nanoseconds for turn in turns)
    uncounted = sum(turn.nanoseconds // turn.steps for turn in turns)
    return max(0, took - counted - uncounted) // 2
