"""The table of flags: a flag is a field of a record of options, with its words and its limits.

Parser, `--help`, gpurun.toml's keys and README's table are made of these fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any, TypeVar

from gpurun.arguments.flag_values import count_of
from gpurun.errors import GpurunError
from gpurun.records.record import record

T = TypeVar("T")

Reader = Callable[[str, str], Any]
"""Makes the value of a flag's name and text; `GpurunError` where the text says none."""
FLAG = "flag"
WIDEST = 24
"""Columns of the flags in a help text; the meaning of a longer flag begins on the next line."""
WIDTH = 100

IN_PLACE = "do not isolate launches: they write to your files"
KEPT = "keep records there (default .gpurun; also GPURUN_HOME)"
QUIET = "print nothing but errors and the closing verdict line"
RECORDS = "the folder of records (default .gpurun; also GPURUN_HOME)"
"""Texts of flags that several commands have."""


@record
class Flag:
    """A flag. `value`: the placeholder of its value in help, two words for a flag of two values,
    "" for a switch. `default`: the text that holds where nobody said anything. `needs`: it is
    refused unless one of these modes is on. `against`: modes and commands that refuse it. `key`: of
    gpurun.toml, with its table; `kind`: the key's type, if it is not the option's. `page`: the page
    of docs that explains it. A flag without `help` is recognised and not listed. `option`: the
    field that it fills. `typed`: False for a key that has no flag."""

    name: str
    help: str = ""
    value: str = ""
    default: str = ""
    read: Reader | None = None
    needs: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    key: str = ""
    kind: Any = None
    page: str = ""
    option: str = ""
    typed: bool = True

    @property
    def values(self) -> int:
        """The number of values that it takes."""
        return len(self.value.split())

    @property
    def meaning(self) -> str:
        """Its text in help and README: the modes that it needs, its meaning, its default."""
        needed = f"with {_either(self.needs)}: " if self.needs else ""
        return f"{needed}{self.help}{f'; {self.default} by default' if self.default else ''}"


Flags = Mapping[str, Flag]
"""The flags that a command knows, by name. Every command knows `--help` besides."""


def flag(
    help: str,
    value: str = "",
    *,
    initial: Any = None,
    name: str = "",
    default: str = "",
    read: Reader | None = None,
    needs: tuple[str, ...] = (),
    against: tuple[str, ...] = (),
    key: str = "",
    kind: Any = None,
    page: str = "",
    typed: bool = True,
) -> Any:
    """A field that is a flag; by default its name is the field's. `initial`: the field's value
    without the flag, None for a flag with a value and False for a switch."""
    if initial is None and not value:
        initial = False
    described = Flag(
        name, help, value, default, read, needs, against, key, kind, page, typed=typed
    )  # fmt: skip
    return field(default=initial, metadata={FLAG: described})


def flags_of(options: type[Any]) -> dict[str, Flag]:
    """The flags among the fields of a record, by name."""
    found: dict[str, Flag] = {}
    for one in fields(options):
        if FLAG in one.metadata:
            described: Flag = one.metadata[FLAG]
            name = described.name or one.name.replace("_", "-")
            found[name] = replace(described, name=name, option=one.name)
    return found


def typed_flags(options: type[Any]) -> dict[str, Flag]:
    """Those that can be typed."""
    return {name: one for name, one in flags_of(options).items() if one.typed}


def filled(options: type[T], own: Mapping[str, str], **known: object) -> T:
    """The options with `known` fields, and every other one by its flag.

    A switch turns its field over, a text is itself, a whole number counts from 1.
    """
    kinds: dict[str, Any] = {one.name: one for one in fields(options)}  # type: ignore[arg-type]
    for name, one in flags_of(options).items():
        if one.option in known or name not in own:
            continue
        if one.read is not None:
            known[one.option] = one.read(name, own[name])
        elif not one.value:
            known[one.option] = not kinds[one.option].default
        elif kinds[one.option].type == "int | None":
            known[one.option] = count_of(name, own[name])
        else:
            known[one.option] = own[name]
    return options(**known)


def refuse_idle(
    flags: Flags,
    own: Iterable[str],
    modes: Mapping[str, bool],
    why: Mapping[str, tuple[str, str]],
) -> None:
    """Refuse a flag whose needed modes are all off, or that a mode excludes.

    `modes`: whether each is on. `why`: by mode, the reason for its exclusions and the cure.
    """
    given = [flags[name] for name in own if name in flags]
    for one in given:
        if one.needs and not any(modes.get(mode) for mode in one.needs):
            raise GpurunError(
                f"--{one.name} needs {_either(one.needs)}", "add it, or drop the flag"
            )
    for one in given:
        for mode in one.against:
            if modes.get(mode):
                reason, cure = why.get(mode, (f"is not for {mode}", "drop it"))
                raise GpurunError(f"--{one.name} {reason}", cure)


def _either(modes: tuple[str, ...]) -> str:
    *others, last = (f"--{mode}" for mode in modes)
    return f"{', '.join(others)} or {last}" if others else last


def help_lines(flags: Iterable[Flag]) -> str:
    """The flags and their meaning, as `--help` lists them."""
    import textwrap

    listed = [(f"--{one.name} {one.value}".rstrip(), one.meaning) for one in flags if one.help]
    column = min(max((len(label) for label, _ in listed), default=0) + 4, WIDEST)
    lines = []
    for label, meaning in listed:
        first = f"  {label}".ljust(column)
        if len(label) + 4 > column:
            lines.append(first.rstrip())
            first = " " * column
        lines += textwrap.wrap(
            meaning, WIDTH, initial_indent=first, subsequent_indent=" " * column,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "".join(f"{line}\n" for line in lines)


def markdown_rows(flags: Iterable[Flag]) -> str:
    """The same as rows of a Markdown table, each with its page."""
    rows = []
    for one in flags:
        if one.help:
            label = f"--{one.name} {one.value}".rstrip()
            name = one.page.partition("#")[0].removeprefix("docs/").removesuffix(".md")
            page = f"[{name}]({one.page})" if one.page else ""
            rows.append(f"| `{label}` | {one.meaning} | {page} |\n")
    return "".join(rows)
