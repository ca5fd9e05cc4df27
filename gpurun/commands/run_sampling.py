"""The parent's periodic look at a run while the script runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.errors import say

if TYPE_CHECKING:
    from gpurun.commands.live_outputs import LiveOutputs

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
                from gpurun.measure.sampler import Sampler

                beside = () if self._outputs is None else self._outputs.beside
                sampler = Sampler(self._run_dir, beside)
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
    """True if an events file says that torch was imported, or if our hooks failed."""
    for path in run_dir.glob("events-*.jsonl"):
        with open(path, "rb") as file:
            if any(line.startswith(WORTH_SUMMARISING) for line in file):
                return True
    return (run_dir / "spec.json.error").exists()


def note(text: str) -> None:
    """A line of ours, whatever line ends an error's text has."""
    say(" ".join(text.split()))
