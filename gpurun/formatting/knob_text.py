"""Knobs and their values as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.formatting.one_line import one_line


def knob_value(value: Any) -> str:
    """The value of a knob in short form: on, off, 8, max-autotune, workers=8 prefetch=4."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        if "batch_size" in value and "via" in value:
            return f"{value['batch_size']} (via {value['via']})"
        return " ".join(f"{k}={knob_value(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(knob_value(v) for v in value)
    return one_line(str(value), 40)


def knobs_text(knobs: Mapping[str, Any], baseline: Mapping[str, Any] | None = None) -> str:
    """The knobs that differ from the baseline, the latest last: "loader_workers 8, tf32"."""
    base = baseline or {}
    changed = [_short_knob(k, v) for k, v in knobs.items() if k not in base or base[k] != v]
    changed += [f"without {k}" for k in base if k not in knobs]
    return ", ".join(changed) or "as it is"


def _short_knob(knob: str, value: Any) -> str:
    return knob if value is True else f"{knob} {knob_value(value)}"
