"""Calls to knobs in the launcher: a knob that raises is left out, and tuning goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gpurun.knobs.api import Knob, Skip
from gpurun.records.facts import Facts

T = TypeVar("T")


class KnobRaised(Exception):
    """A method of a knob raised, or answered with what it may not; the text says which and how.

    `knob`: its name, None where the one who asked knows it.
    """

    def __init__(self, text: str, knob: str | None = None) -> None:
        self.knob = knob
        super().__init__(text)


def candidates(knob: Knob, facts: Facts) -> list[Any] | Skip:
    """The values to try; a `Skip` too where the knob raises."""
    try:
        return _ask(knob, "candidates", lambda x: x if isinstance(x, Skip) else _values(x), facts)
    except KnobRaised as raised:
        return Skip(str(raised))


def refine(knob: Knob, facts: Facts, value: Any, gain: float) -> Any | None:
    """A further value to try, None for none."""
    return _ask(knob, "refine", lambda x: _values([x])[0], facts, value, gain)


def companions(knob: Knob, facts: Facts, value: Any) -> dict[str, Any]:
    """The settings that go with a value."""
    return _ask(knob, "companions", dict, facts, value)


def is_likely(knob: Knob, facts: Facts) -> bool:
    """True if it is likely enough to gain to be tried at once with others; not if it raises."""
    try:
        return _ask(knob, "is_likely", bool, facts)
    except KnobRaised:
        return False


def outside(
    knob: Knob, value: Any, argv: tuple[str, ...]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables that a value needs, and the script's command line under it."""
    variables = _ask(knob, "environment", _variables, value)
    return variables, _ask(knob, "arguments", _words, value, argv)


def _ask(knob: Knob, method: str, shape: Callable[[Any], T], *about: Any) -> T:
    try:
        return shape(getattr(knob, method)(*about))
    except Exception as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise KnobRaised(f"{method} raised {' '.join(said.split())}") from error


def _values(answer: Any) -> list[Any]:
    """Settings are kept as JSON."""
    found = list(answer)
    json.dumps(found)
    return found


def _variables(answer: Any) -> dict[str, str]:
    found = dict(answer)
    return dict(zip(_words(found.keys()), _words(found.values()), strict=True))


def _words(answer: Any) -> tuple[str, ...]:
    """Text alone can be handed to a process."""
    found = tuple(answer)
    wrong = [word for word in found if not isinstance(word, str)]
    if wrong:
        raise TypeError(f"{wrong[0]!r} is not a str")
    return found


def early_imports(knobs: Sequence[Knob], facts: Facts) -> tuple[str, ...]:
    """The modules that those of the knobs want early which may be tried."""
    wanting = [knob for knob in knobs if knob.early_imports]
    may = [knob for knob in wanting if not isinstance(candidates(knob, facts), Skip)]
    return tuple(module for knob in may for module in knob.early_imports)
