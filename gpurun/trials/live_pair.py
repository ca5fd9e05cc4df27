"""A live pair: two launches that take turns of a few steps, one frozen while the other trains.

Disturbances that both sides share hit neighbouring turns alike and cancel in their
ratio. Duet benchmarking: Bulej et al., ICPE 2020 (arXiv 2001.05811).
"""

from __future__ import annotations

import math
import operator
import os
import random
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from gpurun.records.messages.turns import ANSWERS, ORDERS, Turn, TurnOrder
from gpurun.trials.freezer import Freezer
from gpurun.trials.turn_length import LEAST_NS, LEAST_STEPS, turn_nanoseconds

SHORT_EPOCH_SECONDS = 0.25
SHORT_EPOCH_STEPS = 3 * LEAST_STEPS
"""The turns of a side count whole epochs if these take no longer, or have no more steps: hardly a
turn would lie inside one. In shorter turns the end of an epoch is measured apart (`turn_ratio`)."""
LONG_EPOCH_SECONDS = 2.0
"""Where one side counts whole epochs the other does so too, so that both are measured alike. But
longer ones would make its turns too long."""
FIRST_ROUNDS = 8
MOST_ENDS = 0.75
"""If this part of so many rounds holds an epoch's end, the further turns count whole epochs: with
the others alone, a pair would take long."""
POLL_SECONDS = 0.2
BLOCKED_SECONDS = 5.0
"""A side that is silent and computes nothing for so long may wait for its frozen partner."""
WORKING_SHARE = 0.05
"""A side computes if it has this part of a core at least; one that waits polls a lock at most."""
RELEASED_SECONDS = 1.0
"""An answer so soon after the partner was thawed had waited for it."""


class Running(Protocol):
    """A launched process. `adopter`: the one that gets its orphans, if nothing else is below it."""

    pid: int
    adopter: int | None

    def poll(self) -> int | None:
        """The exit code, None while it runs."""


class PairFailed(Exception):
    """Two sides could not take turns until they were measured; the text says why."""


class SideEnded(PairFailed):
    """A side came to its end or answered no more. `exit_code` is None where it was silent.

    `rounds`: those that were whole by then.
    """

    def __init__(self, name: str, exit_code: int | None) -> None:
        self.name, self.exit_code = name, exit_code
        self.rounds: list[Round] = []
        how = "gave no sign of life" if exit_code is None else f"ended with exit code {exit_code}"
        super().__init__(f"{name} {how} before the pair was measured")


class SideLate(PairFailed):
    """A side had not warmed up when the time for both was over."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} had not warmed up when the time for it was over")


class SideBlocked(PairFailed):
    """A side waited for something that its frozen partner held."""

    def __init__(self, name: str, partner: str) -> None:
        super().__init__(f"{name} waited for something that {partner} held while it was frozen")


@dataclass(frozen=True)
class Round:
    """One turn of each side, in the order of the pair."""

    first: Turn
    second: Turn

    @property
    def turns(self) -> tuple[Turn, Turn]:
        """Both, in the order of the pair."""
        return (self.first, self.second)

    @property
    def at_epoch_end(self) -> bool:
        """True if a turn holds the end of an epoch and does not count whole ones."""
        return self.first.at_epoch_end or self.second.at_epoch_end


def fifo_obstacle(folder: Path) -> str:
    """Why there can be no FIFO in this folder, as on some network file systems; "" if it can."""
    fifo = folder / "fifo"
    try:
        os.mkfifo(fifo)
    except OSError:
        return "the file system of the run folder has no FIFOs"
    fifo.unlink()
    return ""


def make_fifos(control: Path) -> None:
    """The two FIFOs of a side, made before it is launched."""
    control.mkdir(parents=True, exist_ok=True)
    for name in (ORDERS, ANSWERS):
        os.mkfifo(control / name)


class Side:
    """One launch of a live pair. Once both are ready it is frozen but for its turns.

    `patience_seconds`: so long a side may take to its first answer, and in a turn; time in which it
    is frozen or parked does not count. `while_waiting` is called a few times a second while an
    answer is awaited.
    """

    def __init__(
        self,
        name: str,
        process: Running,
        control: Path,
        patience_seconds: float,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._process = process
        self._patience = patience_seconds
        self._while_waiting = while_waiting
        self._held_up = False
        """True once an answer came as soon as the partner was thawed."""
        self._freezer = Freezer(process.pid, process.adopter)
        self._orders = os.open(control / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(control / ANSWERS, os.O_RDWR | os.O_CLOEXEC)

    def await_ready(self, deadline: float = math.inf) -> None:
        """Wait until it is warmed up and parked; `SideEnded` if it never is, `SideLate` if it is
        not by `deadline` (monotonic clock).

        It is not frozen yet: the other side may still wait for a lock that a helper of this one
        holds, a compiler's above all.
        """
        self._answer(self._while_waiting, deadline)

    @property
    def answered(self) -> bool:
        """True if an answer waits to be read: before its first turn, that it has warmed up."""
        return bool(select.select([self._answers], [], [], 0)[0])

    @property
    def frozen(self) -> bool:
        """True if it is stopped at present."""
        return self._freezer.frozen

    def freeze(self) -> None:
        """Stop it whole."""
        self._freezer.freeze()

    def thaw(self) -> None:
        """Let what runs beside its training go on; that stays parked until its next turn."""
        self._freezer.thaw()

    def take(self, nanoseconds: int, partner: Side, whole_epochs: bool = False) -> Turn:
        """One turn of so much counted time at least; `SideEnded` if it ends or is silent.

        Where it is silent and computes nothing for long the partner is thawed, which stays parked
        in its step hook. An answer that comes then may have waited for a lock of the partner's, or
        a long wait (for a device, a disk) ended by chance. So the turn is taken again once; the
        second time it is `SideBlocked`.
        """
        self._order(TurnOrder(nanoseconds, LEAST_STEPS, whole_epochs))
        self._freezer.thaw()
        since, thawed = time.monotonic(), math.inf
        computed: float | None = None

        def look() -> None:
            nonlocal since, computed, thawed
            self._while_waiting()
            if computed is None:  # most turns are over before the first look
                computed = self._freezer.cpu_seconds()
            if time.monotonic() < since + BLOCKED_SECONDS or not partner.frozen:
                return
            by_now = self._freezer.cpu_seconds()
            if abs(by_now - computed) < WORKING_SHARE * BLOCKED_SECONDS:
                partner.thaw()
                thawed = time.monotonic()
            since, computed = time.monotonic(), by_now

        turn = self._answer(look)
        self._freezer.freeze()
        if time.monotonic() < thawed:
            return turn
        partner.freeze()
        if time.monotonic() >= thawed + RELEASED_SECONDS:
            return turn
        if self._held_up:
            raise SideBlocked(self.name, partner.name)
        self._held_up = True
        return self.take(nanoseconds, partner, whole_epochs)

    def end(self) -> None:
        """Have it leave at its step; it ends by itself soon after."""
        self._order(TurnOrder(0, 0))
        self._freezer.thaw()

    def close(self) -> None:
        """Leave nothing frozen behind."""
        self._freezer.thaw()
        os.close(self._orders)
        os.close(self._answers)

    def _order(self, order: TurnOrder) -> None:
        os.write(self._orders, order.line())

    def _answer(self, look: Callable[[], None], deadline: float = math.inf) -> Turn:
        line, patient_until = b"", time.monotonic() + self._patience
        while not line.endswith(b"\n"):
            if select.select([self._answers], [], [], POLL_SECONDS)[0]:
                line += os.read(self._answers, 64)
                continue
            look()
            if (code := self._process.poll()) is not None:
                raise SideEnded(self.name, code)
            if time.monotonic() > deadline:
                raise SideLate(self.name)
            if time.monotonic() > patient_until:
                raise SideEnded(self.name, None)
        try:
            return Turn.read(line)
        except ValueError:  # ranks that the script spawned answer beside one another
            raise PairFailed(f"several processes of {self.name} train") from None


def await_both(
    sides: tuple[Side, Side],
    let_second_go: Callable[[], None] = lambda: None,
    deadline: float = math.inf,
) -> None:
    """Wait until both are warmed up and freeze them; errors as of `Side.await_ready`.

    `let_second_go` is called once the first is ready, for a second side that waits at its first
    step until then.
    """
    sides[0].await_ready(deadline)
    let_second_go()
    sides[1].await_ready(deadline)
    for side in sides:
        side.freeze()


def has_short_epochs(turns: tuple[Turn, Turn]) -> tuple[bool, bool]:
    """Of each side, whether its turns should count whole epochs.

    `turns`: a longer one of each side. A turn has room for some steps of the slower side, so that
    the epochs of a much faster one may be short beside it.
    """
    longest = max(SHORT_EPOCH_SECONDS, *(LEAST_STEPS * turn.step_seconds for turn in turns))

    def short(turn: Turn) -> bool:
        if turn.epoch_steps == 0:
            return False
        return turn.epoch_steps <= SHORT_EPOCH_STEPS or _epoch_seconds(turn) <= longest

    found = short(turns[0]), short(turns[1])
    if not any(found):
        return found
    return found[0] or _is_countable(turns[0]), found[1] or _is_countable(turns[1])


def _is_countable(turn: Turn) -> bool:
    """True if its side has epochs of which a turn can count whole ones."""
    return 0 < _epoch_seconds(turn) <= LONG_EPOCH_SECONDS


def _epoch_seconds(turn: Turn) -> float:
    return turn.epoch_steps * turn.step_seconds


def take_turns(
    sides: tuple[Side, Side],
    draws: random.Random,
    enough: Callable[[Sequence[Round]], bool],
    whole_epochs: tuple[bool, bool] = (False, False),
) -> list[Round]:
    """Let two sides, frozen at their steps, take turns in random order until `enough` says so.

    Both get equal time, not equal steps, unless they count whole epochs. Turns are as long as the
    usual hand-over asks for. `whole_epochs`: of each side, whether it counts them from the first.
    Errors are those of `Side.take`; `SideEnded` has the rounds so far.
    """
    rounds: list[Round] = []
    handovers: list[int] = []
    nanoseconds, whole = LEAST_NS, list(whole_epochs)
    while not enough(rounds):
        began = time.perf_counter_ns()
        turns: dict[int, Turn] = {}
        for number in draws.sample((0, 1), 2):
            try:
                turns[number] = sides[number].take(nanoseconds, sides[1 - number], whole[number])
            except SideEnded as ended:
                ended.rounds = rounds
                raise
        took = time.perf_counter_ns() - began
        rounds.append(Round(turns[0], turns[1]))
        # an epoch may be seen to end only now; a turn that holds its end has slower steps
        usual = (_usual([r.first for r in rounds]), _usual([r.second for r in rounds]))
        whole = [*map(operator.or_, whole, has_short_epochs(usual))]
        if _share([r.at_epoch_end for r in rounds]) >= MOST_ENDS and len(rounds) >= FIRST_ROUNDS:
            for number in (0, 1):
                own = _share([r.turns[number].at_epoch_end for r in rounds])
                whole[number] = whole[number] or own >= MOST_ENDS or _is_countable(turns[number])
        handovers.append(_handover(took, rounds[-1]))
        longest = max(turn.nanoseconds // turn.steps for turn in turns.values())
        nanoseconds = turn_nanoseconds(longest, handovers)
    return rounds


def _usual(turns: Sequence[Turn]) -> Turn:
    """A side's quickest turn, with the epoch that it has seen by now."""
    quickest = min(turns, key=lambda turn: turn.step_seconds)
    return replace(quickest, epoch_steps=turns[-1].epoch_steps)


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found)


def _handover(took: int, both: Round) -> int:
    """The time of one hand-over; the first step of a turn is neither counted nor a part of it."""
    counted = sum(turn.nanoseconds for turn in both.turns)
    uncounted = sum(turn.nanoseconds // turn.steps for turn in both.turns)
    return max(0, took - counted - uncounted) // 2
