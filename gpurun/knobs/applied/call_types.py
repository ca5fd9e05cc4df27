"""Types of calls that knobs stand in for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Args = tuple[Any, ...]
"""The positional arguments of a call."""
Kwargs = dict[str, Any]
"""Its keyword arguments."""
Forward = Callable[..., Any]
"""A module's forward, as its class holds it: the module is the first argument."""
