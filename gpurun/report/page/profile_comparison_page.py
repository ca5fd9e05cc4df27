"""Two profiles compared: the changes that explain the difference of their steps, largest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gpurun.formatting.number_text import count, milliseconds, number, signed_percent
from gpurun.records.diagnosis import (
    CauseChange,
    ChangeKind,
    ComparisonBasis,
    KernelMatch,
    ProfileChange,
    ProfileComparison,
    ThingKind,
)
from gpurun.report.findings_text import place
from gpurun.report.page.page_blocks import Block, Bullets, Page, PagePart, Paragraph, Section, Table
from gpurun.report.terminal_table import Column, Grid

TOP, MORE = 10, 5
"""Rows that are shown: those that explain something, and those that explain nothing themselves."""
LEAST_SHOWN = 0.01
"""Changes that explain less, as a share of the greatest, are put together in one row."""
NONE = "–"
_OF_CAUSES = {
    ChangeKind.ADDED: "New cause",
    ChangeKind.LOST: "Gone",
    ChangeKind.SLOWER: "Worse",
    ChangeKind.FASTER: "Better",
}
_TIMES = (ThingKind.HOST, ThingKind.IDLE, ThingKind.PART, ThingKind.FUNCTION)
_OF_TIME = {ChangeKind.SLOWER.value: "longer", ChangeKind.FASTER.value: "shorter"}
"""The words for a stretch of time, which does nothing faster or slower."""
_GROUNDS = {
    ComparisonBasis.REPLAY: "Each change was taken out of the replayed steps, one after the other",
    ComparisonBasis.DEVICE_TIME: (
        "Shares are of device time, busy and idle. It explains step time only as far as the device "
        "bounds the step: work that the step does not wait for shows as less idle time"
    ),
    ComparisonBasis.STEP_SPLIT: "Shares are of the parts of the step on the host's clock",
    ComparisonBasis.OPERATORS: "Shares are of the own time of torch's operators on the host",
}


def comparison_page(found: ProfileComparison, everything: bool = False) -> Page:
    """A page of the comparison alone. `everything`: all changes, however small."""
    title = f"gpurun: comparison of {found.before.subject} and {found.after.subject}"
    return Page(title, (PagePart("", (comparison_section(found, everything, title=""),)),))


def comparison_section(
    found: ProfileComparison, everything: bool = False, *, title: str = "What changed in the step"
) -> Section:
    """The comparison as a part of any page, comment or report."""
    blocks: list[Block] = [Paragraph(comparison_headline(found), strong=True)]
    blocks.append(Table(_explaining_grid(found, everything)))
    others = [c for c in found.changes if c.explained_ms is None and c.before_ms != c.after_ms]
    if others:
        blocks.append(Paragraph("Changed too, and counted above as far as it cost time:"))
        blocks.append(Table(_other_grid(others if everything else others[:MORE])))
    blocks.append(Bullets(tuple(_remarks(found))))
    return Section(title, tuple(blocks))


def comparison_headline(found: ProfileComparison) -> str:
    """The steps before and after, and how much of the difference is explained."""
    one, other = found.before.step_ms, found.after.step_ms
    change = f" ({signed_percent(found.difference_ms / one)})" if one > 0 else ""
    steps = f"A step took {milliseconds(one)} before and {milliseconds(other)} after"
    return f"{steps}: {_signed_ms(found.difference_ms)}{change}"


def _explaining_grid(found: ProfileComparison, everything: bool) -> Grid:
    columns = (
        Column("explains", right=True),
        Column("share", right=True),
        *_columns(),
    )
    explaining = [change for change in found.changes if change.explained_ms is not None]
    shown = explaining if everything else _largest(explaining)
    rows = [_explaining_row(change) for change in shown]
    hidden = [change for change in explaining if change not in shown]
    if hidden:
        rest = sum(change.explained_ms or 0.0 for change in hidden)
        rows.append(_sum_row(found, rest, "smaller changes"))
    rows.append(_sum_row(found, found.not_explained_ms, "not explained"))
    return Grid(columns, tuple(rows), ("",) * (len(rows) - 1) + ("bold",))


def _largest(explaining: Sequence[ProfileChange]) -> Sequence[ProfileChange]:
    """They are in the order of what they explain."""
    single = [each for each in explaining if each.kind is not ThingKind.OTHERS]
    most = max((abs(each.explained_ms or 0.0) for each in single), default=0.0)
    large = [each for each in single if abs(each.explained_ms or 0.0) > LEAST_SHOWN * most]
    return large[:TOP]


def _columns() -> tuple[Column, ...]:
    return (
        Column("change"),
        Column("before", right=True, dropped=2),
        Column("after", right=True, dropped=2),
        Column("calls", right=True, dropped=1),
        Column("of"),
    )


def _explaining_row(change: ProfileChange) -> tuple[str, ...]:
    explained = change.explained_ms or 0.0
    return (_signed_ms(explained), _share(change.explained_share), *_row(change))


def _sum_row(found: ProfileComparison, explained_ms: float, what: str) -> tuple[str, ...]:
    told = any(change.explained_share is not None for change in found.changes)
    share = explained_ms / found.difference_ms if told else None
    return (_signed_ms(explained_ms), _share(share), "", "", "", "", what)


def _other_grid(changes: Sequence[ProfileChange]) -> Grid:
    return Grid(_columns(), tuple(map(_row, changes)))


def _row(change: ProfileChange) -> tuple[str, ...]:
    named = "" if change.kind is ThingKind.OTHERS else f"{change.kind.value}: "
    told = change.change.value
    return (
        _OF_TIME.get(told, told) if change.kind in _TIMES else told,
        *(NONE if ms is None else milliseconds(ms) for ms in (change.before_ms, change.after_ms)),
        _calls(change.before_calls, change.after_calls),
        f"{named}{change.name}",
    )


def _calls(before: float | None, after: float | None) -> str:
    """Of a step: "2", where they differ "2 → 17"."""
    told = [NONE if each is None else f"{round(each, 1):,.15g}" for each in (before, after)]
    if before is None and after is None:
        return ""
    return told[0] if told[0] == told[1] else " → ".join(told)


def _remarks(found: ProfileComparison) -> Iterator[str]:
    error = found.replay_error_ms
    off = "" if error is None else f"; both replays together are off by {milliseconds(error)}"
    yield f"{_GROUNDS[found.basis]} ({found.measured}{off})."
    if found.why_no_replay is not None:
        yield f"No replay: {found.why_no_replay}."
    if error is not None and abs(found.difference_ms) <= error:
        yield "The steps differ by no more than the replays are off, so no shares are given."
    one, other = found.before.samples_per_step, found.after.samples_per_step
    if one is not None and other is not None and one != other:
        yield f"A step has {number(one)} samples before and {number(other)} after."
    if found.kernels_matched is not None:
        kinds = count(found.kernels_matched, "kernel")
        yield f"Matched by their short names: {kinds}{_renamed(found.renamed_kernels)}."
    yield from map(_cause, found.causes)
    yield from found.notes


def _renamed(matches: Sequence[KernelMatch]) -> str:
    if not matches:
        return ""
    names = [match.name for match in matches]
    told = ", ".join(names[:MORE]) + (", …" if len(names) > MORE else "")
    return f"; {len(matches)} of them with other signatures: {told}"


def _cause(cause: CauseChange) -> str:
    finding = cause.after or cause.before
    assert finding is not None
    severities = [f"{each.severity:.2f}" for each in (cause.before, cause.after) if each]
    said, location = finding.description, finding.location
    if location is not None and f"{Path(location.file).name}:{location.line}" not in said:
        said = f"{said}, {place(location)}"
    word = _OF_CAUSES[cause.change]
    return f"{word}: {cause.type.value} ({' → '.join(severities)}): {said}"


def _signed_ms(value: float) -> str:
    shown = round(value, 6)  # clocks count nanoseconds
    return f"{'−' if shown < 0 else '+'}{milliseconds(abs(shown))}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{'−' if share < 0 else ''}{abs(share) * 100:.0f} %"
