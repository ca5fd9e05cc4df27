"""Ranks that end with their agent.

torch's agent starts each rank in a session of its own, and a SIGKILL of the agent leaves them all
running. The kernel's parent-death signal, set first thing in the rank, ends them. (One process
without an agent gets it from the launcher before its program starts.)
"""

from __future__ import annotations

import os
import signal

PR_SET_PDEATHSIG = 1


def is_rank() -> bool:
    """True if this process is a rank that an elastic agent started directly."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.getsid(0) == os.getpid()


def end_with_agent() -> None:
    """Have the kernel kill this rank when the agent's main thread, which forked it, ends."""
    import ctypes

    agent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os.kill(os.getpid(), signal.SIGKILL)
