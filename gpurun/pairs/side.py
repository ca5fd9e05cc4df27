"""One side of a live pair as the launcher sees it: frozen, but for the turns that it takes."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from gpurun.isolation.sandbox import Sandbox
from gpurun.records.messages.turns import ANSWERS, ORDERS, Turn, TurnOrder

LEAST_STEPS = 5
"""Counted steps of a turn at least."""
POLL_SECONDS = 0.2
BLOCKED_SECONDS = 5.0
"""A side that is silent and computes nothing for so long may wait for its frozen partner."""
WORKING_SHARE = 0.05
"""A side computes if it has this part of a core at least; one that waits polls a lock at most."""


class PairFailed(Exception):
    """Two sides could not take turns until they were measured, by the one of this name; the text
    says why."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        super().__init__(text)


class SideEnded(PairFailed):
    """A side came to its end or answered no more. `exit_code` is None where it was silent."""

    def __init__(self, name: str, exit_code: int | None) -> None:
        self.exit_code = exit_code
        how = "gave no sign of life" if exit_code is None else f"ended with exit code {exit_code}"
        super().__init__(name, f"{name} {how} before the pair was measured")


class SideLate(PairFailed):
    """A side had not warmed up when the time for both was over."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"{name} had not warmed up when the time for it was over")


class Side:
    """One launch of a live pair. Once both are ready it is frozen but for its turns.

    `patience_seconds`: so long a side may take to its first answer, and in a turn; time in which it
    is frozen or parked does not count. `while_waiting` is called a few times a second while an
    answer is awaited.
    """

    def __init__(
        self,
        name: str,
        process: Sandbox,
        control: Path,
        patience_seconds: float,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._process = process
        self._patience = patience_seconds
        self._while_waiting = while_waiting
        self._held_up = False
        """True once the partner was thawed for it."""
        self._freezer = Freezer(process.pid, process.adopter)
        self._orders = os.open(control / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(control / ANSWERS, os.O_RDWR | os.O_CLOEXEC)

    def await_ready(self, deadline: float = math.inf) -> None:
        """Wait until it is warmed up and parked; `SideEnded` if it never is, `SideLate` if it is
        not by `deadline` (monotonic clock).

        It is not frozen yet: the other side may still wait for a lock that a helper of this one
        holds, a compiler's above all.
        """
        self._answer(self._while_waiting, deadline, ready=True)

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

    def take(self, nanoseconds: int, partner: Side, least_steps: int = LEAST_STEPS) -> Turn:
        """One turn of so much counted time and so many steps at least; `SideEnded` if it ends or is
        silent.

        Where it is silent and computes nothing for long the partner is thawed, which stays parked
        in its step hook: it may hold a lock. Such a turn does not count, for the partner's workers
        ran in it. It is taken again once; the second time it is a `PairFailed`.
        """
        self._order(TurnOrder(nanoseconds, least_steps))
        self._freezer.thaw()
        since, thawed = time.monotonic(), False
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
                thawed = True
            since, computed = time.monotonic(), by_now

        turn = self._answer(look)
        self._freezer.freeze()
        if not thawed:
            return turn
        partner.freeze()
        if self._held_up:
            text = f"{self.name} stood still, twice, while {partner.name} was frozen"
            raise PairFailed(self.name, text)
        self._held_up = True
        return self.take(nanoseconds, partner, least_steps)

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

    def _answer(
        self, look: Callable[[], None], deadline: float = math.inf, *, ready: bool = False
    ) -> Turn:
        """The next answer; `ready`: the one that it has warmed up, which counted nothing."""
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
        with suppress(ValueError):
            turn = Turn.read(line)
            if ready != (min(turn.steps, turn.nanoseconds) > 0):
                return turn
        # ranks that the script spawned answer beside one another
        raise PairFailed(self.name, f"several processes of {self.name} train")


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


class Freezer:
    """Stops and continues the process tree below `pid`, `pid` included.

    SIGSTOP reaches every process whatever it ignores. The main process is stopped first, and the
    tree is read again until nothing new appears: a worker may fork while it is being stopped.
    `adopter`: the process that gets the tree's orphans as children, and never stops.
    """

    def __init__(self, pid: int, adopter: int | None = None) -> None:
        self._pid = pid
        self._root = pid if adopter is None else adopter
        self._frozen: list[int] = []

    @property
    def frozen(self) -> bool:
        """True if the tree is stopped at present."""
        return bool(self._frozen)

    def freeze(self) -> None:
        """Stop the whole tree, unless it is stopped."""
        ahead = [] if self._frozen else [self._pid]
        while ahead:
            for pid in ahead:
                _send(pid, signal.SIGSTOP)
            self._frozen += ahead
            ahead = [pid for pid in tree_below(self._root) if pid not in self._frozen]

    def thaw(self) -> None:
        """Let it go on, those that were stopped last first."""
        for pid in reversed(self._frozen):
            _send(pid, signal.SIGCONT)
        self._frozen.clear()

    def cpu_seconds(self) -> float:
        """What the processes of the tree have computed so far; those that ended are left out."""
        ticks = sum(map(_ticks, {self._pid, *tree_below(self._root)}))
        return ticks / os.sysconf("SC_CLK_TCK")


def tree_below(pid: int) -> list[int]:
    """All processes below one by parent links; sessions and process groups do not matter."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        children = list(_children(ahead.pop()))
        found += children
        ahead += children
    return found


def _children(pid: int) -> Iterator[int]:
    """Those of all its threads, each of which may end at any moment, as the process may."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])  # utime and stime


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # ended, or another user's by now
        os.kill(pid, number)
