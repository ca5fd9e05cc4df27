"""The page of two profiles compared, and pages on the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.records.diagnosis import (
    CauseChange,
    ChangeKind,
    ComparedProfile,
    ComparisonBasis,
    KernelMatch,
    ProfileChange,
    ProfileComparison,
    ThingKind,
)
from gpurun.records.finding import Finding, FindingType, Location
from gpurun.report.page.charts import BarChart
from gpurun.report.page.page_blocks import (
    Bullets,
    Card,
    Code,
    Page,
    PagePart,
    Paragraph,
    Picture,
    Pictures,
    Section,
    Table,
)
from gpurun.report.page.profile_comparison_page import comparison_page, comparison_section
from gpurun.report.page.terminal_page import print_page
from gpurun.report.terminal_table import Column, Grid

FINDING = Finding(
    FindingType.CPU_GPU_SYNC, 0.5, "the device idles", (), Location("train.py", 7), (), None, None
)
WAIT = ProfileChange(
    ThingKind.CALL, "cudaDeviceSynchronize", ChangeKind.MORE, 0.5, 3.0, 1, 12, 1.5, 0.75
)
FEW = ProfileChange(ThingKind.KERNEL, "gemm", ChangeKind.SLOWER, 4.0, 4.01, 2.0, 2.0, 0.01, 0.005)
IDLE = ProfileChange(ThingKind.IDLE, "late", ChangeKind.SLOWER, 1.0, 2.0)


def comparison(*changes: ProfileChange) -> ProfileComparison:
    explained = sum(change.explained_ms or 0.0 for change in changes)
    return ProfileComparison(
        before=ComparedProfile("a", 10.0, 20, None, 32, 0.1),
        after=ComparedProfile("b", 12.0, 20, None, 32, 0.2),
        difference_ms=2.0,
        basis=ComparisonBasis.REPLAY,
        measured="unprofiled steps, medians",
        why_no_replay=None,
        replay_error_ms=0.125,
        changes=changes,
        explained_ms=explained,
        not_explained_ms=2.0 - explained,
    )


def text(
    capsys: pytest.CaptureFixture[str], found: ProfileComparison, everything: bool = False
) -> str:
    print_page(comparison_page(found, everything))
    return capsys.readouterr().err


def row(told: str, of: str) -> list[str]:
    return next(line.split() for line in told.splitlines() if line.rstrip().endswith(of))


def test_the_rows_add_up_to_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    told = text(capsys, comparison(WAIT, FEW, IDLE))
    assert told.startswith("gpurun: comparison of a and b\ngpurun: A step took 10.0 ms before")
    assert "+2.00 ms (+20.0 %)" in told
    waits = "+1.50 ms 75 % more calls 0.500 ms 3.00 ms 1 → 12 call: cudaDeviceSynchronize"
    assert row(told, "cudaDeviceSynchronize") == waits.split()
    assert row(told, "smaller changes")[:4] == ["+0.0100", "ms", "0", "%"]
    assert row(told, "not explained")[:4] == ["+0.490", "ms", "24", "%"]
    assert row(told, "idle: late") == ["longer", "1.00", "ms", "2.00", "ms", "idle:", "late"]
    assert "both replays together are off by 0.125 ms" in told
    assert "gemm" not in told
    assert "gemm" in text(capsys, comparison(WAIT, FEW, IDLE), everything=True)


def test_what_one_must_know_to_read_the_rows_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = comparison(WAIT)
    within = replace(found, replay_error_ms=3.0)
    assert "no shares are given" in text(capsys, within)
    assert "no shares are given" not in text(capsys, found)
    other_batch = replace(found, after=replace(found.after, samples_per_step=64))
    assert "A step has 32.0 samples before and 64.0 after" in text(capsys, other_batch)
    device = replace(found, basis=ComparisonBasis.DEVICE_TIME, why_no_replay="after: no calls")
    told = text(capsys, device)
    assert "only as far as the device bounds the step" in told
    assert "No replay: after: no calls." in told
    renamed = replace(
        found, kernels_matched=5, renamed_kernels=(KernelMatch("add", ("a",), ("b",)),)
    )
    assert "5 kernels; 1 of them with other signatures: add." in text(capsys, renamed)


def test_causes_are_named_with_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    worse = replace(FINDING, severity=0.9)
    changes = {
        (ChangeKind.ADDED, None, FINDING): "New cause: cpu_gpu_sync (0.50): the device idles",
        (ChangeKind.LOST, FINDING, None): "Gone: cpu_gpu_sync (0.50)",
        (ChangeKind.SLOWER, FINDING, worse): "Worse: cpu_gpu_sync (0.50 → 0.90)",
        (ChangeKind.FASTER, worse, FINDING): "Better: cpu_gpu_sync (0.90 → 0.50)",
    }
    for (change, before, after), words in changes.items():
        cause = CauseChange(FindingType.CPU_GPU_SYNC, change, before, after)
        told = text(capsys, replace(comparison(WAIT), causes=(cause,)))
        assert words in told
        assert "train.py:7" in told


def test_a_pair_without_a_difference_divides_by_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    same = replace(comparison(), difference_ms=0.0, not_explained_ms=0.0, explained_ms=0.0)
    assert row(text(capsys, same), "not explained") == ["+0", "ms", "not", "explained"]


def test_the_section_stands_in_any_page_under_its_heading() -> None:
    section = comparison_section(comparison(WAIT))
    assert section.title
    assert any(isinstance(block, Table) for block in section.blocks)


def test_every_block_of_a_page_is_told_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    picture = Picture(BarChart("t", ()), "a falling line")
    blocks = (
        Paragraph("a sentence"),
        Bullets(("one thing", "another")),
        Code("run", "gpurun train.py"),
        Table(Grid((Column("heading"),), (("cell",),))),
        picture,
        Pictures((Picture(BarChart("t", ()), "a rising line"),)),
        Card("a finding", "warning", ("do: this",), "loss.item()"),
    )
    part = PagePart("", (Section("A section", blocks),), missing=("a file",))
    print_page(Page("the title", (part,)))
    told = capsys.readouterr().err
    words = (
        "the title", "A section", "a sentence", "one thing", "another", "run gpurun train.py",
        "heading", "cell", "a falling line", "a rising line", "a finding", "loss.item()",
        "do: this", "missing: a file",
    )  # fmt: skip
    assert [word for word in words if word not in told] == []
    assert "svg" not in told
