"""Readers of flags: each makes a value of a flag's name and its text."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from gpurun.errors import GpurunError
from gpurun.records.effects import Effect
from gpurun.records.spec import NonfiniteAction

E = TypeVar("E", bound=enum.Enum)

UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SPANS = {"h": 3600, "d": 86400, "w": 7 * 86400}
LOOPBACK = "127.0.0.1"
EFFECTS = tuple(effect.value for effect in Effect)


def parse_duration(text: str) -> float:
    """Seconds of "90", "90s", "5m", "1h30m" or "500ms"; `GpurunError` for anything else."""
    units = "|".join(UNIT_SECONDS)
    number = r"\d+(?:\.\d+)?"
    compact = text.replace(" ", "").lower()
    if re.fullmatch(number, compact):
        seconds = float(compact)
    elif re.fullmatch(f"(?:{number}(?:{units}))+", compact):
        parts = re.findall(f"({number})({units})", compact)
        seconds = sum(float(count) * UNIT_SECONDS[unit] for count, unit in parts)
    else:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise GpurunError(
            f"{text!r} is not a duration", "Write seconds or a number with ms, s, m or h, as in 5m."
        )
    return seconds


def parse_fraction(text: str) -> float:
    """The fraction of "5%" or "0.05", between 0 and 1; `GpurunError` for anything else."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(%?)", text.replace(" ", ""))
    value = float(number[1]) / (100 if number[2] else 1) if number else math.nan
    if not 0 < value < 1:
        raise GpurunError(
            f"{text!r} is not a fraction between 0 and 1", "Write a percentage as 5% or 0.05."
        )
    return value


def duration_of(flag: str, text: str) -> float:
    """The seconds of a flag such as `--budget`."""
    try:
        return parse_duration(text)
    except GpurunError as error:
        raise GpurunError(f"--{flag}: {error.what}", error.todo) from None


def count_of(flag: str, text: str) -> int:
    """The number from 1 on that a flag was given."""
    if not text.isdigit() or int(text) == 0:
        raise GpurunError(f"--{flag} {text!r} is not a count", "write a number from 1")
    return int(text)


def choice_of(choices: type[E]) -> Callable[[str, str], E]:
    """The reader of a flag whose value is that of an enum's member."""

    def read(flag: str, text: str) -> E:
        try:
            return choices(text)
        except ValueError:
            known = " or ".join(str(one.value) for one in choices)
            what = flag.rpartition("-")[2]
            raise GpurunError(f"--{flag} {text!r} is no {what}", f"write {known}") from None

    return read


def effects_of(flag: str, text: str) -> tuple[str, ...]:
    """The effects of `--allow`."""
    chosen = tuple(word.strip() for word in text.split(",") if word.strip())
    wrong = [word for word in chosen if word not in EFFECTS]
    if wrong or not chosen:
        raise GpurunError(
            f"--{flag} {text!r} is not a list of effects", f"choose among {','.join(EFFECTS)}"
        )
    return chosen


def names_of(flag: str, text: str) -> tuple[str, ...]:
    """The names of a flag that takes a list of them."""
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names:
        raise GpurunError(f"--{flag} {text!r} is no list of names", f"write --{flag} NAME,NAME")
    return names


def address_of(flag: str, text: str) -> tuple[str, int]:
    """The host and the port of "9400" (on loopback), "0.0.0.0:9400" or "[::]:9400"."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) < 65536) or (colon and not host):
        raise GpurunError(
            f"--{flag} {text!r} is no port", "write a port, as in 9400, or ADDRESS:PORT"
        )
    return host or LOOPBACK, int(port)


def fraction_of(flag: str, text: str) -> float:
    """The fraction of a flag such as `--threshold`."""
    try:
        return parse_fraction(text)
    except GpurunError as error:
        raise GpurunError(f"--{flag}: {error.what}", error.todo) from None


def price_of(flag: str, text: str) -> float:
    """A price above 0."""
    with suppress(ValueError):
        if 0 < (price := float(text)) < math.inf:
            return price
    raise GpurunError(f"--{flag} {text!r} is no price", f"write an amount, as in --{flag} 2.80")


def nonfinite_action_of(flag: str, text: str) -> NonfiniteAction:
    """The answer to a loss that is not finite."""
    try:
        return NonfiniteAction(text)
    except ValueError:
        raise GpurunError(f"--{flag} {text!r} is not known", "write warn, skip or stop") from None


UNSOUND = {
    "skip": "the error leaves the script's own loop, and nothing outside can return to it",
    "shrink": "the script's own variables would still hold the old batch size",
    "restart": "gpurun cannot prove that the script has written nothing",
}
"""Why gpurun does not answer an error for lack of memory in these ways on an untouched script."""


def oom_action_of(flag: str, text: str) -> str:
    """The answer to a lack of memory: `stop` is python's, the script ends with its own error."""
    if text in UNSOUND:
        raise GpurunError(
            f"--{flag} {text} is refused: {UNSOUND[text]}",
            "gpurun --optimize finds settings that fit, before the training; or drop the flag",
        )
    if text != "stop":
        raise GpurunError(f"--{flag} {text!r} is not known", "write stop, or drop the flag")
    return text


def device_counts_of(flag: str, text: str) -> tuple[int, ...]:
    """The counts of `--scale 1,2,4`, rising."""
    words = [word.strip() for word in text.split(",")]
    if "," not in text and any(letter.isalpha() for letter in text):  # the next flag or the script
        raise GpurunError(
            f"--{flag} needs counts of devices, not {text}",
            "write counts, as in gpurun --scale 1,2,4 train.py; see gpurun --help",
        )
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and int(word))]
    if wrong:
        raise GpurunError(
            f"--{flag}: {wrong[0]!r} is no count of devices", "write counts from 1: --scale 1,2,4"
        )
    counts = [int(word) for word in words]
    twice = [count for count in counts if counts.count(count) > 1]
    if twice:
        raise GpurunError(f"--{flag}: {twice[0]} is there twice", "write each count once")
    if len(counts) == 1:
        raise GpurunError(
            f"--{flag} {text} is one count only",
            f"name another one to compare it with: --scale 1,{max(counts[0], 2)}",
        )
    return tuple(sorted(counts))


def moment_of(flag: str, text: str | None, now: datetime, *, end: bool = False) -> datetime | None:
    """The moment of "2026-11-22", "2026-11-22T18:00" or "30d" (so long ago; also h and w).

    Without an offset it is local time. `end`: a date stands for the end of that day.
    """
    if text is None:
        return None
    span = re.fullmatch(r"(\d{1,6})([hdw])", text.strip().lower())
    try:
        if span:
            return now - timedelta(seconds=int(span[1]) * SPANS[span[2]])
        found = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", text.strip()))
        if end and re.fullmatch(r"[\d-]+", text.strip()):
            found += timedelta(days=1)
        return found.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise GpurunError(
            f"--{flag} {text!r} is no date", "write 2026-11-22, 2026-11-22T18:00 or 30d"
        ) from None
