"""The options of `--ddp-options`: how ranks exchange gradients. The names are torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpurun.errors import GpurunError
from gpurun.records.spec import Setting

COMPRESSIONS = ("bf16", "fp16")
EXAMPLE = "--ddp-options static_graph,bucket_cap_mb=100,compression=bf16"


def _switch(text: str) -> bool:
    if text not in ("", "true", "false"):
        raise ValueError("is no switch")
    return text != "false"


def _megabytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("is no number of MiB")
    return int(text)


def _compression(text: str) -> str:
    if text not in COMPRESSIONS:
        raise ValueError(f"is none of {', '.join(COMPRESSIONS)}")
    return text


KNOWN: dict[str, Callable[[str], Any]] = {
    "gradient_as_bucket_view": _switch,
    "static_graph": _switch,
    "bucket_cap_mb": _megabytes,
    "compression": _compression,
}
"""`compression` is a communication hook: gradients travel in half precision."""


def ddp_options_of(flag: str, text: str) -> tuple[Setting, ...]:
    """The options that a flag's value lists, by name; `GpurunError` names the first wrong one."""
    found: dict[str, Any] = {}
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name not in KNOWN:
            raise GpurunError(
                f"--{flag}: {name!r} is none of {', '.join(KNOWN)}", f"write {EXAMPLE}"
            )
        try:
            found[name] = KNOWN[name](value)
        except ValueError as error:
            raise GpurunError(f"--{flag}: {name} {value!r} {error}", f"write {EXAMPLE}") from None
    return tuple(Setting(name, value) for name, value in sorted(found.items()))


def flag_of(options: Sequence[Setting]) -> str:
    """The value that asks for these options; "" for none."""
    return ",".join(
        option.knob if option.value is True else f"{option.knob}={str(option.value).lower()}"
        for option in options
    )
