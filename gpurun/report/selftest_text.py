"""The result of a selftest as plain lines."""

from __future__ import annotations

from gpurun.bench.selftest.selftest_answers import speed_of
from gpurun.formatting.number_text import change_interval, count, duration, percent, signed_percent
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.selftest import Selftest, SelftestPart
from gpurun.report.terminal_table import Column, Grid

NAMES = {
    "unchanged": "nothing differs",
    "runtime": "slowed down by gpurun",
    "module": "slowed down in {file}",
}


def selftest_lines(found: Selftest) -> list[str]:
    """The closing report: a row a comparison, what is wrong, and the verdict."""
    grid = _grid(found)
    lines = [f"  {line}" for line in grid.lines()] if grid.rows else []
    lines += [f"{_name(part)}: {part.wrong}" for part in found.parts if part.wrong is not None]
    lines.append(f"{found.verdict.upper()} selftest of {found.benchmark}: {_said(found)}")
    if found.verdict != "pass":
        lines.append(one_line(found.recommendation))
    return lines


def pairs_in_all(found: Selftest) -> int:
    """Pairs of launches that were judged."""
    return sum(part.comparison.pairs for part in found.parts)


def _said(found: Selftest) -> str:
    if found.error is not None:
        return one_line(found.error)
    if found.verdict == "pass":
        allowed = f"{percent(found.threshold or 0.0)} allowed"
        return f"the gate ({allowed}) stays green on equal trees, and goes red for twice as much"
    if found.verdict == "wrong":
        return "the gate does not answer as it must"
    open_parts = [_name(part) for part in found.parts if part.right is None]
    pairs = count(found.max_pairs, "pair")
    return f"undecided within {pairs}: {', '.join(open_parts)}" if open_parts else "not complete"


def _name(part: SelftestPart) -> str:
    return NAMES[part.part].format(file=part.file)


def _grid(found: Selftest) -> Grid:
    columns = (
        Column("HEAD with itself"),
        Column("must be"),
        Column("gate"),
        Column("planted", right=True),
        Column("found", right=True),
        Column("interval", right=True),
        Column("pairs", right=True),
        Column("time", right=True),
    )
    return Grid(columns, tuple(_row(part) for part in found.parts))


def _row(part: SelftestPart) -> tuple[str, ...]:
    speed, planted = speed_of(part.comparison), part.planted_slowdown
    loss = None if speed is None else speed.slowdown
    bounds = None if speed is None else speed.slowdown_confidence_interval
    interval = ""
    if bounds is not None:
        interval = change_interval(-bounds[1], -bounds[0])
    return (
        _name(part),
        part.expected,
        f"{part.answer or part.comparison.verdict}{' (wrong)' if part.right is False else ''}",
        "" if planted is None else signed_percent(-planted),
        "" if loss is None else signed_percent(-loss),
        interval,
        str(part.comparison.pairs),
        duration(part.comparison.seconds),
    )
