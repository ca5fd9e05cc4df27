"""A node that is not the first: it launches what the first one says, and hands over its records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gpurun.errors import GpurunError
from gpurun.launch.meeting import Meeting, NodeGone
from gpurun.scaling.handing_over import records_of
from gpurun.scaling.here import Elsewhere, Here
from gpurun.scaling.launch import Ended
from gpurun.scaling.messages import (
    Facts,
    Over,
    Part,
    PartEnded,
    kind_of,
    read_message,
    write_message,
)
from gpurun.scaling.nodes import ANSWER_SECONDS, Looking

WAIT_SECONDS = 0.1
"""Between two looks at whether the first node has said something."""
BEAT_SECONDS = 2.0


class Following:
    """Takes part in the launches of the first node. `tell` hears of each, a line."""

    def __init__(self, meeting: Meeting, tell: Callable[[str], None]) -> None:
        self._meeting = meeting
        self._me = meeting.node
        self._tell = tell
        self._heard = 0

    def introduce(self, facts: Facts) -> None:
        """Say who this is."""
        self._meeting.tell(f"{self._me}/facts", write_message(facts))

    def follow(self, here: Here) -> Over:
        """Launch until the first node says that all is over; `NodeGone` where it says no more."""
        with self._heart():
            while True:
                text = self._next()
                if kind_of(text) == Over.__name__:
                    return read_message(Over, text)
                self._take_part(read_message(Part, text), here)

    def leave(self, why: str) -> None:
        """Say that nobody here will answer any more."""
        with suppress(NodeGone):
            self._meeting.tell(f"{self._me}/left", why)

    def _next(self) -> str:
        while (text := self._waiting()) is None:
            time.sleep(WAIT_SECONDS)
        self._heard += 1
        return text

    def _waiting(self) -> str | None:
        return self._meeting.heard(f"{self._me}/message/{self._heard + 1}")

    def _take_part(self, part: Part, here: Here) -> None:
        about = f"{part.number}/{self._me}"
        self._meeting.tell(f"{about}/here", "")
        self._meeting.show_clock(f"{about}/clock", ANSWER_SECONDS)
        alone, began = part.nodes == 1, time.monotonic()
        records: dict[str, str] = {}
        try:
            run_dir, ended = here.run(part, Looking(lambda: self._elsewhere(part)))
            if not alone:  # who warms up by itself is not measured
                records = records_of(run_dir)
        except (OSError, GpurunError) as error:
            what = error.what if isinstance(error, GpurunError) else error.strerror or str(error)
            ended = Ended(None, time.monotonic() - began, f"could not be launched: {what}")
        self._meeting.tell(f"{about}/ended", write_message(PartEnded(ended, records)))
        how = "to warm up" if alone else f"of {part.order.ranks} ranks"
        self._tell(f"launch {part.number}, {how}: {_how(ended)}, {ended.seconds:.0f} s")

    def _elsewhere(self, part: Part) -> Elsewhere:
        if self._waiting() is not None:
            return Elsewhere.GIVEN_UP  # the first node went on without us
        told = Elsewhere(self._meeting.heard(f"{part.number}/over") or Elsewhere.RUNS.value)
        # what only warms up has its own pace on each node
        return Elsewhere.RUNS if part.nodes == 1 and told is Elsewhere.ENDED else told

    @contextmanager
    def _heart(self) -> Iterator[None]:
        """Show that this node lives, whatever it does meanwhile."""
        stopped = threading.Event()

        def beat() -> None:
            count = 0
            with suppress(NodeGone):
                while True:
                    count += 1
                    self._meeting.tell(f"{self._me}/beat", str(count))
                    if stopped.wait(BEAT_SECONDS):
                        return

        threading.Thread(target=beat, name="gpurun-heart", daemon=True).start()
        try:
            yield
        finally:
            stopped.set()


def _how(ended: Ended) -> str:
    return ended.given_up or ("done" if ended.exit_code == 0 else f"exit code {ended.exit_code}")
