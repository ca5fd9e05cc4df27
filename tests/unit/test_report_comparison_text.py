"""The Markdown of a comparison, whole, as it stands in a comment."""

from __future__ import annotations

import re
from dataclasses import replace

from gpurun.bench.compare.pair_runner import Findings
from gpurun.bench.unfinished import Unfinished, worst_with_others
from gpurun.report.comparison_text import MARKER, comparison_markdown
from tests.conftest import REPOSITORY
from tests.unit.bench_launches import launch
from tests.unit.test_bench_document import QUIET_SD, document, found


def golden(name: str) -> str:
    return (REPOSITORY / "tests" / "data" / "comparison_markdown" / f"{name}.md").read_text()


def markdown(findings: Findings) -> str:
    """That of the document, with the assumption by which these were judged."""
    one = document(findings)
    assert one.method is not None
    return comparison_markdown(replace(one, method=replace(one.method, prior_sd=QUIET_SD)))


def test_a_pass() -> None:
    assert markdown(found([999.0, 1001.0, 998.0, 1000.0])) == golden("pass")


def test_a_regression_names_the_commit_and_what_was_noted() -> None:
    findings = found([800.0, 801.0, 799.0, 800.5])
    findings.notes.append("pair 3 is measured again: the GPU was throttled in the current half")
    assert markdown(findings) == golden("regression")


def test_an_undecided_one_says_what_to_do() -> None:
    assert markdown(found([1000.0, 800.0, 1200.0, 900.0] * 4)) == golden("inconclusive")


def test_a_failure_shows_no_figures_that_would_read_like_a_regression() -> None:
    findings = found([800.0] * 4)
    findings.failed.append(launch("current", 800.0, status="failed", error="ValueError: no"))
    unfinished = Unfinished(
        "failed", 5, "it failed on the current side: ValueError: no", "see its output"
    )
    assert comparison_markdown(document(findings, unfinished=unfinished)) == golden("failed")


def test_several_benchmarks_are_one_comment_with_the_worst_first() -> None:
    passed = replace(document(found([999.0, 1001.0, 998.0, 1000.0])), benchmark="other")
    text = comparison_markdown(worst_with_others([passed, document(found([800.0] * 4))]))
    marker, heading, *rest = text.splitlines()
    assert marker == MARKER
    assert heading.startswith("### gpurun bench: REGRESSION train")
    assert [line for line in rest if line.startswith(("<!--", "###"))] == [
        "### gpurun bench: PASS other: throughput −0.1 %; peak memory ±0.0 % (4 pairs)"
    ]


def test_a_comment_notifies_nobody_and_links_to_nothing() -> None:
    findings = found([800.0, 801.0, 799.0, 800.5])
    findings.notes.append("thanks @octocat and @org/team, a@b.org, #12, www.x.org, https://x.org/y")
    findings.notes.append(f"as in GH-12, gh-3 and {'c0ffee1234' * 4}")
    written = comparison_markdown(document(findings))
    linked = r"@\w|#\d|https?://|www\.|mailto:|(?i:\bGH-\d)|\b[0-9a-f]{40}\b"
    assert not re.search(linked, written.replace(MARKER, ""))
    assert "octocat" in written
    assert "x.org/y" in written
