"""The result of `bench bisect` as plain lines and as Markdown, the verdict first."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.bench.trees.git import short
from gpurun.formatting.number_text import count, duration, percent, signed_percent
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.bisection import BisectedCommit, BisectionReport, SuspectedCommits
from gpurun.report.markdown_text import escaped, table
from gpurun.report.terminal_table import Column, Grid

TITLES = {
    "found": "FOUND",
    "narrowed": "NARROWED DOWN",
    "no_drop": "NO DROP FOUND",
    "inconclusive": "INCONCLUSIVE",
    "failed": "FAILED",
    "interrupted": "INTERRUPTED",
}
MOST_SHOWN = 6
"""Suspects of a search that is not over, the likeliest."""


def verdict_line(found: BisectionReport) -> str:
    """The answer in one line."""
    title = f"{TITLES[found.verdict]} {found.benchmark}"
    if found.error is not None:
        return f"{title}: {one_line(found.error)}"
    pairs = count(len(found.pairs), "pair")
    if found.verdict == "found" and found.culprit is not None:
        return f"{title}: {_named(found.commit(found.culprit))} ({pairs})"
    if found.verdict == "narrowed":
        number = len(found.suspects[0].commits)
        return f"{title}: one of {count(number, 'commit')}, which cannot be separated ({pairs})"
    if found.verdict == "no_drop":
        ends = _ends(found)
        return f"{title}: {ends} loses less than {percent(found.smallest_slowdown)} ({pairs})"
    if not found.pairs:
        return f"{title}: no pair was launched"
    number = sum(len(one.commits) for one in found.suspects)
    return f"{title}: {count(number, 'commit')} may have brought the drop ({pairs})"


def bisection_lines(found: BisectionReport) -> list[str]:
    """The closing report."""
    lines = [verdict_line(found), *_figures(found)]
    lines += [f"  {line}" for line in _suspects(found)]
    lines += [f"  skipped {_named(one)}: {one_line(one.skipped or '')}" for one in found.skipped]
    lines.append(one_line(found.recommendation))
    return lines


def bisection_markdown(found: BisectionReport) -> str:
    """A section of Markdown: the answer, its figures, and the commits that matter."""
    parts = [f"### gpurun bench bisect: {escaped(verdict_line(found))}"]
    parts += [escaped(line.strip()) for line in _figures(found)]
    if found.suspects and found.verdict != "found":
        parts.append(table(_grid(found)))
    parts.append(escaped(one_line(found.recommendation)))
    remarks = [f"skipped {_named(one)}: {one.skipped}" for one in found.skipped]
    parts += [f"- {escaped(one_line(line))}" for line in (*remarks, *found.notes)]
    if found.commits:
        pairs = count(len(found.pairs), "pair")
        commits = count(len(found.commits), "commit")
        parts.append(f"`{_ends(found)}`, {commits}, {pairs} in {duration(found.seconds)}")
    sections = ["\n\n".join(parts) + "\n", *map(bisection_markdown, found.others)]
    return "\n".join(sections)


def _figures(found: BisectionReport) -> list[str]:
    """Certainty, size and cost; unknown figures are left out."""
    lines = []
    if found.verdict in ("found", "narrowed"):
        text = f"probability {_probability(found.suspects[0].probability)}"
        bounds = found.slowdown_confidence_interval
        if found.slowdown is not None and bounds is not None:
            low, high = (signed_percent(-bound) for bound in bounds[::-1])
            text += f", throughput {signed_percent(-found.slowdown)} (interval {low} to {high})"
        if found.range_slowdown is not None:
            text += f"; {_ends(found)} {signed_percent(-found.range_slowdown)}"
        lines.append(f"  {text}")
    if found.verdict == "no_drop" and found.no_drop_probability is not None:
        lines.append(f"  probability {_probability(found.no_drop_probability)}")
    second = found.second_drop
    if second is not None:
        likely = ", ".join(short(one.commits[-1]) for one in second.suspects[:3])
        lines.append(
            f"  another drop of {percent(second.slowdown)} is in the range, with probability "
            f"{_probability(second.probability)}: {likely}"
        )
    if found.pairs:
        noise = "" if found.launch_noise is None else f", noise {percent(found.launch_noise)}"
        pairs = count(len(found.pairs), "pair")
        lines.append(f"  {pairs} of launches in {duration(found.seconds)}{noise}")
    return lines


def _suspects(found: BisectionReport) -> list[str]:
    if found.verdict == "found" or not found.pairs:
        return []
    if found.verdict == "narrowed":
        return [f"suspect {_named(found.commit(one))}" for one in found.suspects[0].commits]
    lines = [
        f"suspect {_named(found.commit(one.commits[-1]))}: {_probability(one.probability)}"
        + (f" (or one of {len(one.commits) - 1} skipped before it)" * (len(one.commits) > 1))
        for one in found.suspects[:MOST_SHOWN]
    ]
    if len(found.suspects) > MOST_SHOWN:
        lines.append(f"and {len(found.suspects) - MOST_SHOWN} more")
    if found.no_drop_probability is not None:
        lines.append(f"no drop at all: {_probability(found.no_drop_probability)}")
    return lines


def _grid(found: BisectionReport) -> Grid:
    columns = (
        Column("suspect"), Column("subject"), Column("author"), Column("probability", right=True)
    )  # fmt: skip
    return Grid(columns, tuple(_rows(found, found.suspects[:MOST_SHOWN])))


def _rows(found: BisectionReport, suspects: Sequence[SuspectedCommits]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for suspect in suspects:
        for name in suspect.commits:
            one = found.commit(name)
            words = (short(name), one_line(one.subject), one_line(one.author))
            rows.append((*words, _probability(suspect.probability)))
    return rows


def _named(one: BisectedCommit) -> str:
    merge = "merge " if one.merge else ""
    return f'{merge}{short(one.commit)} "{one_line(one.subject, 72)}" by {one_line(one.author)}'


def _ends(found: BisectionReport) -> str:
    if found.good is None or found.bad is None:
        return "the range"
    return f"{short(found.good.commit)}..{short(found.bad.commit)}"


def _probability(value: float) -> str:
    """A probability as percent; a value that would round to certainty is shown as "> 99.9 %"."""
    return "> 99.9 %" if value > 0.9995 else percent(value)
