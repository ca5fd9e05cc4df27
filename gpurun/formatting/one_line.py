"""Foreign text, such as an exception, on one line."""

from __future__ import annotations


def one_line(text: str, limit: int | None = None) -> str:
    """Foreign text (an exception, a reason) without line breaks and control characters."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    joined = " ".join(words)
    if limit is None or len(joined) <= limit:
        return joined
    return joined[: limit - 1].rstrip() + "…"
