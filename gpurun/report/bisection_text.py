"""The result of `bench bisect` as plain lines and as Markdown, the verdict first."""

from __future__ import annotations

from gpurun.bench.trees.git import short
from gpurun.formatting.number_text import change_interval, count, duration, percent, signed_percent
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.bisection import BisectedCommit, BisectionReport
from gpurun.report.markdown_text import escaped

TITLES = {
    "found": "FOUND",
    "narrowed": "NARROWED DOWN",
    "no_drop": "NO DROP FOUND",
    "inconclusive": "INCONCLUSIVE",
    "failed": "FAILED",
    "interrupted": "INTERRUPTED",
}
MOST_SHOWN = 6
"""Suspects that are listed."""


def verdict_line(found: BisectionReport) -> str:
    """The answer in one line."""
    title = f"{TITLES[found.verdict]} {found.benchmark}"
    if found.error is not None:
        return f"{title}: {one_line(found.error)}"
    pairs = count(len(found.pairs), "pair")
    if found.culprit is not None:
        return f"{title}: {_named(found.commit(found.culprit))} ({pairs})"
    if found.verdict == "no_drop":
        least = percent(found.smallest_slowdown)
        return f"{title}: {_ends(found)} loses less than {least} ({pairs})"
    if not found.pairs:
        return f"{title}: no pair was launched"
    suspects = count(len(found.suspects), "commit")
    return f"{title}: {suspects} may have brought the drop ({pairs})"


def bisection_lines(found: BisectionReport) -> list[str]:
    """The closing report."""
    lines = [verdict_line(found), *(f"  {line}" for line in _details(found))]
    return [*lines, one_line(found.recommendation)]


def bisection_markdown(found: BisectionReport) -> str:
    """A section of Markdown: the answer, its figures, and the commits that matter."""
    lines = "\n".join(f"- {escaped(line)}" for line in (*_details(found), *found.notes))
    parts = [f"### gpurun bench bisect: {escaped(verdict_line(found))}", lines]
    parts.append(escaped(one_line(found.recommendation)))
    sections = ["\n\n".join(filter(None, parts)) + "\n", *map(bisection_markdown, found.others)]
    return "\n".join(sections)


def _details(found: BisectionReport) -> list[str]:
    """What the culprit and the range lose, what it cost, and the commits that are left or were
    skipped."""
    lines = []
    before = "against its parent" if len(found.suspects) == 1 else "against the commit before them"
    changes = (
        (before, found.slowdown, found.slowdown_interval),
        (_ends(found), found.range_slowdown, found.range_slowdown_interval),
    )
    for what, lost, bounds in changes:
        if lost is not None and bounds is not None:
            bounds_text = change_interval(-bounds[1], -bounds[0])
            lines.append(f"throughput {signed_percent(-lost)} ({bounds_text}) {what}")
    if found.pairs:
        commits, pairs = count(len(found.commits), "commit"), count(len(found.pairs), "pair")
        lines.append(f"{commits}, {pairs} of launches in {duration(found.seconds)}")
    if found.culprit is None and found.pairs:
        lines += [f"suspect {_named(found.commit(one))}" for one in found.suspects[:MOST_SHOWN]]
        if len(found.suspects) > MOST_SHOWN:
            lines.append(f"and {len(found.suspects) - MOST_SHOWN} more")
    lines += [f"skipped {_named(one)}: {one_line(one.skipped or '')}" for one in found.skipped]
    return lines


def _named(one: BisectedCommit) -> str:
    merge = "merge " if one.merge else ""
    return f'{merge}{short(one.commit)} "{one_line(one.subject, 72)}" by {one_line(one.author)}'


def _ends(found: BisectionReport) -> str:
    line = found.line
    return f"{short(line[0].commit)}..{short(line[-1].commit)}" if line else "the range"
