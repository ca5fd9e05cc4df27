"""From the signal that ended a process to a shell's exit code, and to its name."""

from __future__ import annotations

import signal


def exit_code_of(returncode: int) -> int:
    """A shell's exit code for a return code that is negative where a signal ended the process."""
    return 128 - returncode if returncode < 0 else returncode


def signal_name(returncode: int) -> str | None:
    """The name of the signal in a negative return code: "SIGKILL"; None if there was none."""
    if returncode >= 0:
        return None
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return str(-returncode)  # a real-time signal
