"""Launches on several nodes, as the first of them leads them.

A launch that one node has room for runs on the first alone; a larger one takes as many nodes as it
fills. All nodes warm up, for what a script downloads must be everywhere: those that the first
launch does not take do so by themselves. See `handing_over` for their records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpurun.errors import ExitCode, GpurunError
from gpurun.launch.meeting import Meeting, NodeGone, free_port
from gpurun.scaling.handing_over import keep_records
from gpurun.scaling.here import GIVEN_UP_ELSEWHERE, NOT_WITH_OTHERS, Elsewhere, Here
from gpurun.scaling.launch import Ended
from gpurun.scaling.messages import (
    SAME,
    Facts,
    Message,
    Over,
    Part,
    PartEnded,
    read_message,
    write_message,
)
from gpurun.trials.interruption import Interruption
from gpurun.trials.supervision import POLL_SECONDS

ANSWER_SECONDS = 60.0
"""A node that does not answer within this time is gone: it has nothing else to do."""
SILENCE_SECONDS = 30.0
"""Nor is one there whose heart has not beaten for so long."""
LOOK_SECONDS = 0.5
"""How often the others are looked at while a launch runs."""
FAREWELL_SECONDS = 20.0
"""The others have so long to hear that it is over: then the store goes."""
CONSEQUENCES = (NOT_WITH_OTHERS, GIVEN_UP_ELSEWHERE)
"""Why a part is given up whose launch has ended on another node before."""


@dataclass
class Other:
    """Another node. `host`: its name, once it is known; `said`: how many messages it was sent;
    `gone`: why it takes part no more; `ahead_ns`: of its clock before ours, as last read; `beat`:
    its last heart beat, which was new at `beat_at`.
    """

    number: int
    host: str = ""
    said: int = 0
    gone: str = ""
    ahead_ns: int = 0
    beat: str | None = None
    beat_at: float = 0.0

    @property
    def name(self) -> str:
        """As users know it."""
        return f"node {self.number} ({self.host})" if self.host else f"node {self.number}"


@dataclass
class Nodes:
    """The other nodes, by the first. `ranks`: on each node; `tell` hears of nodes that are lost."""

    meeting: Meeting
    ranks: int
    tell: Callable[[str], None]
    others: list[Other] = field(init=False)

    def __post_init__(self) -> None:
        self.others = [Other(number) for number in range(1, self.meeting.place.nodes)]

    def spanned(self, ranks: int) -> int:
        """How many nodes a launch of so many ranks takes."""
        return max(ranks // self.ranks, 1)

    def gather(self, own: Facts) -> None:
        """Wait until all nodes are there; `GpurunError` where one does not fit to this one."""
        seconds = self.meeting.place.join_seconds
        end = time.monotonic() + seconds
        self.tell(f"waiting for {len(self.others)} more node{'s' if len(self.others) > 1 else ''}")
        for other in self.others:
            while (text := self.meeting.heard(f"{other.number}/facts")) is None:
                left = self.meeting.heard(f"{other.number}/left")
                if left is not None or time.monotonic() > end:
                    raise GpurunError(
                        f"{other.name} did not come: {left or f'within {seconds:g} s'}",
                        "start the same command on every node",
                    )
                time.sleep(POLL_SECONDS)
            theirs = read_message(Facts, text)
            other.host = theirs.host
            self._check(other, own, theirs)

    def _check(self, other: Other, own: Facts, theirs: Facts) -> None:
        for name, what in SAME.items():
            if getattr(own, name) != getattr(theirs, name):
                raise GpurunError(
                    f"the {what} of {other.name} is another one than here",
                    "start the same command, with the same files and packages, on every node",
                )
        if theirs.ranks < self.ranks:
            raise GpurunError(
                f"{other.name} has room for {theirs.ranks} of the {self.ranks} ranks that each is "
                "to have",
                f"write --nproc-per-node {theirs.ranks}, or add --oversubscribe",
            )
        if theirs.device != own.device:
            self.tell(f"{other.name} has other devices: {theirs.device}")

    def run(self, part: Part, here: Here) -> tuple[Path, Ended]:
        """Launch on as many nodes as it takes; this node's run folder then holds all of it."""
        nodes = self.spanned(part.order.ranks)
        if nodes > 1:
            part = replace(
                part,
                ranks=self.ranks,
                nodes=nodes,
                host=self.meeting.place.host,
                port=free_port(),
            )
        with_us = self.others[: nodes - 1]
        lost = next((other for other in with_us if other.gone), None)
        if lost is not None:
            return _nothing(here, part), _lost(lost)
        parts = {other.number: part for other in with_us}
        if part.order.first:
            alone = part if nodes == 1 else _alone(part, self.ranks)
            parts = {other.number: parts.get(other.number, alone) for other in self.others}
        how = Elsewhere.GIVEN_UP
        try:
            asked = [other for other in self.others if other.number in parts]
            for other in asked:
                self._begin(other, parts[other.number])
            run_dir, ended = here.run(part, Looking(lambda: self._elsewhere(part, with_us)))
            how = Elsewhere.GIVEN_UP if ended.given_up else Elsewhere.ENDED
        finally:
            with suppress(NodeGone):
                self.meeting.tell(f"{part.number}/over", how.value)
        for other in asked:
            theirs = self._collect(other, parts[other.number], run_dir)
            if other in with_us:
                ended = _lost(other, ended) if theirs is None else worse(ended, theirs, other)
        return run_dir, ended

    def end(self, over: Over) -> None:
        """Tell all that it is over, and keep the store until those that met us have heard."""
        end = time.monotonic() + FAREWELL_SECONDS
        with suppress(NodeGone):
            for other in self.others:
                self._say(other, over)
            there = [o for o in self.others if not o.gone and self.meeting.is_there(o.number)]
            while there and time.monotonic() < end:
                there = [o for o in there if self.meeting.heard(f"{o.number}/left") is None]
                time.sleep(POLL_SECONDS)

    # -- one of them ---------------------------------------------------------------------------

    def _begin(self, other: Other, part: Part) -> None:
        if other.gone:
            return
        about = f"{part.number}/{other.number}"
        self._say(other, part)
        end = time.monotonic() + ANSWER_SECONDS
        other.beat_at = 0.0
        try:
            while self.meeting.heard(f"{about}/here") is None:
                silent = self._silent(other)
                if silent or time.monotonic() > end:
                    raise NodeGone(silent or f"no answer within {ANSWER_SECONDS:g} s")
                time.sleep(POLL_SECONDS)
            other.ahead_ns = self.meeting.read_clock(f"{about}/clock", ANSWER_SECONDS)
        except NodeGone as error:
            self._lose(other, str(error))

    def _elsewhere(self, part: Part, others: Sequence[Other]) -> Elsewhere:
        for other in others:
            silent = "" if other.gone else self._silent(other)
            if silent:
                self._lose(other, silent)
            if other.gone:
                return Elsewhere.GIVEN_UP
        ended = (self.meeting.heard(f"{part.number}/{o.number}/ended") for o in others)
        return Elsewhere.ENDED if any(text is not None for text in ended) else Elsewhere.RUNS

    def _silent(self, other: Other) -> str:
        """Why nothing is to be expected of it any more; "" as long as its heart beats."""
        left = self.meeting.heard(f"{other.number}/left")
        if left is not None:
            return left
        beat, now = self.meeting.heard(f"{other.number}/beat"), time.monotonic()
        if beat != other.beat or not other.beat_at:
            other.beat, other.beat_at = beat, now
        late = now - other.beat_at > SILENCE_SECONDS
        return f"no sign of life for {SILENCE_SECONDS:g} s" if late else ""

    def _collect(self, other: Other, part: Part, run_dir: Path) -> Ended | None:
        """How its part ended; its records are in `run_dir` then. None: it is gone."""
        name, waiting = f"{part.number}/{other.number}/ended", part.nodes == 1
        while not other.gone and (text := self.meeting.heard(name)) is None:
            if waiting:
                self.tell(f"waiting for {other.name} to warm up")
                waiting = False
            silent = self._silent(other)
            if silent:
                self._lose(other, silent)
            time.sleep(POLL_SECONDS)
        if other.gone:
            return None
        assert text is not None
        theirs = read_message(PartEnded, text)
        if part.nodes == 1 and (theirs.ended.given_up or theirs.ended.exit_code):
            why = theirs.ended.given_up or f"exit code {theirs.ended.exit_code}"
            self.tell(f"{other.name} did not warm up: {why}")
        try:
            keep_records(
                theirs.records, run_dir, other.number, other.ahead_ns, other.number * part.ranks
            )
        except OSError as error:
            reason = f"its records could not be kept here: {error.strerror or error}"
            return replace(theirs.ended, given_up=reason)
        return theirs.ended

    def _say(self, other: Other, message: Message) -> None:
        other.said += 1
        self.meeting.tell(f"{other.number}/message/{other.said}", write_message(message))

    def _lose(self, other: Other, why: str) -> None:
        other.gone = why
        self.tell(f"{other.name} is gone: {why}")


@contextmanager
def ending(nodes: Nodes | None, interruption: Interruption) -> Iterator[Callable[[str, int], None]]:
    """What to call with verdict and exit code, for all nodes to end so; an error ends them too."""
    told = False

    def over(verdict: str, exit_code: int, why: str = "") -> None:
        nonlocal told
        told = True
        if nodes is not None:
            nodes.end(Over(verdict, exit_code, why))

    try:
        yield over
    except GpurunError as error:
        over("error", int(error.code), error.what)
        raise
    finally:
        if not told and interruption.signal is not None:
            interruption.hold()
            over("interrupted", interruption.exit_code)
        elif not told:
            over("failed", int(ExitCode.INTERNAL))


@dataclass
class Looking:
    """Asks a question that costs a message, and not at every look."""

    question: Callable[[], Elsewhere]
    _next: float = 0.0
    _answer: Elsewhere = Elsewhere.RUNS

    def __call__(self) -> Elsewhere:
        """The latest answer."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOK_SECONDS
            self._answer = self.question()
        return self._answer


def _alone(part: Part, ranks: int) -> Part:
    """For a node that a first launch of several nodes does not take."""
    order = replace(part.order, ranks=ranks)
    return replace(part, order=order, nodes=1, host="", port=0)


def _nothing(here: Here, part: Part) -> Path:
    folder = here.folder / "launches" / part.name
    folder.mkdir(parents=True)
    return folder


def _lost(other: Other, ended: Ended | None = None) -> Ended:
    ended = ended or Ended(None, 0.0, "")
    return replace(ended, given_up=f"{other.name} is gone: {other.gone}", lost=True)


def worse(ours: Ended, theirs: Ended, other: Other) -> Ended:
    """How the launch ended as a whole: badly if it did on one node, and the cause, if both did.

    Who was given up because others had ended shows a consequence of what happened there.
    """
    if ours.lost:
        return ours
    causes = [
        (f"{other.name}: {theirs.given_up}", theirs.given_up),
        (ours.given_up, ours.given_up),
    ]
    for shown, reason in causes:
        if reason and reason not in CONSEQUENCES and not (ours.exit_code or theirs.exit_code):
            return replace(ours, given_up=shown)
    codes = [code for code in (ours.exit_code, theirs.exit_code) if code]
    # who lost a rank to a signal (out of memory) comes before who lost the connection to it
    code = (
        max(codes, default=None) if any(code > 128 for code in codes) else next(iter(codes), None)
    )
    if code:
        return replace(ours, exit_code=code, given_up="")
    return replace(ours, given_up=ours.given_up or (causes[0][0] if theirs.given_up else ""))
