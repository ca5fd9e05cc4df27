"""The result of a selftest as plain lines."""

from __future__ import annotations

from gpurun.bench.gate_selftest import PLANS
from gpurun.formatting.number_text import change_interval, count, duration, percent, signed_percent
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.selftest import Selftest, SelftestPart
from gpurun.report.terminal_table import Column, Grid

SAID = {plan.part: plan.said for plan in PLANS}
HEADS = ("HEAD with itself", "must be", "gate")
FIGURES = ("planted", "found", "interval", "pairs", "time")


def selftest_lines(found: Selftest) -> list[str]:
    """The closing report: a row a comparison, what is wrong, and the verdict."""
    columns = *map(Column, HEADS), *(Column(head, right=True) for head in FIGURES)
    rows = tuple(map(_row, found.parts))
    lines = [f"  {line}" for line in Grid(columns, rows).lines()] if rows else []
    lines += [f"{SAID[part.part]}: {part.wrong}" for part in found.parts if part.wrong is not None]
    lines.append(f"{found.verdict.upper()} selftest of {found.benchmark}: {_said(found)}")
    return lines if found.verdict == "pass" else [*lines, one_line(found.recommendation)]


def _said(found: Selftest) -> str:
    if found.error is not None:
        return one_line(found.error)
    if found.verdict == "pass":
        allowed = f"{percent(found.threshold or 0.0)} allowed"
        return f"the gate ({allowed}) goes red for a loss of twice as much, and only for that"
    if found.verdict == "wrong":
        return "the gate does not answer as it must"
    undecided = ", ".join(SAID[part.part] for part in found.parts if part.right is None)
    pairs = count(found.max_pairs, "pair")
    return f"undecided within {pairs}: {undecided}" if undecided else "not complete"


def _row(part: SelftestPart) -> tuple[str, ...]:
    found = part.comparison
    loss, bounds = found.slowdown, found.slowdown_confidence_interval
    return (
        SAID[part.part],
        part.expected,
        f"{part.answer or found.verdict}{' (wrong)' if part.right is False else ''}",
        signed_percent(-part.planted_slowdown) if part.planted_slowdown else "",
        "" if loss is None else signed_percent(-loss),
        "" if bounds is None else change_interval(-bounds[1], -bounds[0]),
        str(found.pairs),
        duration(found.seconds),
    )
