"""`--live`, `--prometheus` and `--tensorboard` of a run, and the parent's periodic look at it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.arguments.options import Options
from gpurun.errors import say
from gpurun.records.parse_json import open_regular

if TYPE_CHECKING:
    from gpurun.measure.followed_run import FollowedRun
    from gpurun.report.live.metrics_server import MetricsServer
    from gpurun.report.live.status_line import StatusLine
    from gpurun.report.live.tensorboard_events import TensorboardProcess


Note = Callable[[str], None]
DRAW_SECONDS = 1.0


class LiveOutputs:
    """Takes the port at once, so that a taken one is an error before the script starts.

    The script is started by a fork, and threads do not mix with that: the server answers from the
    first tick on. Connections wait until then.
    """

    def __init__(self, options: Options) -> None:
        self._server: MetricsServer | None = None
        self._events: TensorboardProcess | None = None
        if options.tensorboard is not None:
            from gpurun.report.live.tensorboard_events import TensorboardProcess

            self._events = TensorboardProcess(Path(options.tensorboard))
        if options.prometheus is not None:
            from gpurun.report.live.metrics_server import MetricsServer

            self._server = MetricsServer(options.prometheus)
        self._live = options.live
        self._status: StatusLine | None = None
        self._followed: FollowedRun | None = None
        self._draw_at = 0.0
        self.beside: tuple[int, ...] = ()
        """Processes of ours beside the script's."""

    def begin(self, run_dir: Path | None, note: Note | None) -> None:
        """The script is about to start. `note` tells the user where the metrics are."""
        self._run_dir = run_dir
        if run_dir is None:
            self.close()
            self._server = self._events = None
            if note is not None:
                note("without a record there are no figures while the script runs")
            return
        if self._live:
            self._begin_status(note)
        if self._events is not None:
            self.beside = (self._events.start(run_dir),)
        if self._server is not None and note is not None:
            note(f"metrics: {self._server.url}")

    def _begin_status(self, note: Note | None) -> None:
        from gpurun.report.live.status_line import StatusLine
        from gpurun.report.terminal_output import on_terminal

        if on_terminal():
            self._status = StatusLine(sys.stderr.fileno())
        elif note is not None:
            note("--live shows nothing: stderr is no terminal")

    def tick(self) -> None:
        """The script runs: answer from now on, and draw what it does."""
        if self._run_dir is None:
            return
        from gpurun.measure.followed_run import FollowedRun

        if self._server is not None and not self._server.started:
            self._server.start(FollowedRun(self._run_dir).report)
        if self._status is not None and time.monotonic() >= self._draw_at:
            self._draw_at = time.monotonic() + DRAW_SECONDS
            self._followed = self._followed or FollowedRun(self._run_dir)
            self._draw(self._status, self._followed)

    def _draw(self, status: StatusLine, followed: FollowedRun) -> None:
        from gpurun.report.live.status_line import status_text

        text = status_text(followed.report())
        try:
            if text:
                status.draw(text)
        except OSError:
            self._status = None  # the terminal is gone; the run goes on

    def close(self, note: Note | None = None) -> None:
        """The script has ended. `note` tells the user what is missing."""
        try:
            if self._status is not None:
                self._status.close()
        except OSError:
            pass  # the terminal is gone
        if self._server is not None:
            self._server.close()
        missing = None if self._events is None else self._events.finish()
        if missing is not None and note is not None:
            note(missing)


WORTH_SUMMARISING = (b'{"event":"torch"', b'{"event":"hook"')
"""Torch was imported, or our hooks failed when it was."""


class RunSampling:
    """The parent's periodic look at the run: samples the devices once the script uses torch."""

    def __init__(self, run_dir: Path | None, outputs: LiveOutputs | None = None) -> None:
        self.lost: OSError | None = None
        """The error that kept samples from being written."""
        self._run_dir = run_dir
        self._outputs = outputs
        self._broken = False
        self._sample: Callable[[int], None] | None = None
        self._close: Callable[[], None] | None = None

    def tick(self, pid: int) -> None:
        """Take a sample of the process tree of `pid`; the first failure ends the sampling."""
        if self._run_dir is None:
            return
        self._show()
        try:
            if self._sample is None and uses_torch(self._run_dir):
                from gpurun.measure.sampler import RunSampler

                beside = () if self._outputs is None else self._outputs.beside
                sampler = RunSampler(self._run_dir, beside)
                self._sample, self._close = sampler.tick, sampler.close
            if self._sample is not None:
                self._sample(pid)
        except OSError as error:
            self._run_dir, self.lost = None, error
        except Exception as error:
            self._run_dir = None
            note(f"no device samples: {type(error).__name__}: {error}")

    def _show(self) -> None:
        """Let live outputs look at the run; a failure ends them, but not the sampling."""
        try:
            if self._outputs is not None and not self._broken:
                self._outputs.tick()
        except Exception as error:
            self._broken = True
            note(f"no live figures from here on: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End the sampling."""
        try:
            if self._close is not None:
                self._close()
        except Exception as error:
            note(f"device samples are incomplete: {type(error).__name__}: {error}")


def uses_torch(run_dir: Path) -> bool:
    """True if torch was imported, by a file of events, or one cannot be read, or hooks failed."""
    for path in run_dir.glob("events-*.jsonl"):
        try:
            with open_regular(path) as file:
                if any(line.startswith(WORTH_SUMMARISING) for line in file):
                    return True
        except OSError:
            return True
    return (run_dir / "spec.json.error").exists()


def note(text: str) -> None:
    """A line of ours, whatever line ends an error's text has."""
    say(" ".join(text.split()))
