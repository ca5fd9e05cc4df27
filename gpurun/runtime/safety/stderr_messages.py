"""Lines to the user on stderr; of several ranks the first one says it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def say(text: str) -> None:
    """Write one line of ours, if stderr is open."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"gpurun: {text}\n")
        sys.stderr.flush()


def say_once(run_dir: Path, subject: str, text: str) -> None:
    """Write the line unless another process of the run has spoken of the subject."""
    try:
        os.close(os.open(run_dir / f"said-{subject}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    except OSError:
        pass  # no room for the mark: better twice than never
    rank = os.environ.get("RANK", "")
    say(f"rank {rank}: {text}" if rank.isdigit() else text)
