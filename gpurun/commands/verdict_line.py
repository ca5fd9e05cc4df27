"""The machine-readable line that ends every command, because pipes eat exit codes."""

from __future__ import annotations

import sys


def print_verdict(verdict: str, exit_code: int, **facts: object) -> None:
    """Write `verdict=<verdict> exit=<code> key=value ...` to stderr; None facts are left out."""
    words = [f"verdict={verdict}", f"exit={exit_code}"]
    words += [f"{key}={_quoted(value)}" for key, value in facts.items() if value is not None]
    try:
        sys.stderr.write(" ".join(words) + "\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads us any more: the exit code is all that is left to say


def _quoted(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'"{text}"' if " " in text or not text else text
