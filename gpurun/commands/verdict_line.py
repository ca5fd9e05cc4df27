"""The machine-readable line that ends every command, because pipes eat exit codes."""

from __future__ import annotations

from gpurun.errors import write_line


def print_verdict(verdict: str, exit_code: int, **facts: object) -> None:
    """Write `verdict=<verdict> exit=<code> key=value ...` to stderr; None facts are left out."""
    words = [f"verdict={verdict}", f"exit={exit_code}"]
    words += [f"{key}={_quoted(value)}" for key, value in facts.items() if value is not None]
    write_line(" ".join(words))


def _quoted(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'"{text}"' if " " in text or not text else text
