"""Everything that a profile measured stands on the page, in Markdown and on the terminal."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache

import pytest

from gpurun.commands.diagnose import diagnose_run
from gpurun.diagnoses.diagnosis_report import diagnosis_report
from gpurun.diagnoses.evidence import Evidence
from gpurun.measure.run_summary import read_records
from gpurun.records.codec import from_json, to_json
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.messages.profile_events import Allocation, MemoryTraceEvent
from gpurun.records.profile_figures import OperatorShare, PictureRow, ProfileFigures, StepPicture
from gpurun.report.page.findings_section import diagnosis_page
from gpurun.report.page.html_page import html_page
from gpurun.report.page.markdown_page import markdown_page
from gpurun.report.page.page_blocks import Picture, Section, Table
from gpurun.report.page.profile_sections import picture_section, profile_sections
from gpurun.report.page.svg_charts import svg
from gpurun.report.page.terminal_page import print_sections
from tests.conftest import REPOSITORY
from tests.recordings import unpacked
from tests.unit.diagnosis_cases import FIGURES
from tests.unit.test_report_page_charts import SVG, numbers, texts

RECORDED = REPOSITORY / "tests" / "data" / "h100_profiles"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> DiagnosisReport:
    """The diagnosis of pageable copies on an H100."""
    run = unpacked("pageable_copies", tmp_path_factory.mktemp("recorded"), RECORDED)
    return diagnose_run(run, read_records(run))


@cache
def empty() -> DiagnosisReport:
    return diagnosis_report(Evidence(), "trace.json")


def by_title(sections: list[Section]) -> dict[str, Section]:
    return {section.title: section for section in sections}


def rows(section: Section) -> tuple[tuple[str, ...], ...]:
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    return table.grid.rows


def test_a_recording_has_a_section_for_all_that_was_measured(recorded: DiagnosisReport) -> None:
    found = by_title(profile_sections(recorded))
    assert list(found) == [
        "One step",
        "What if",
        "Kernels",
        "Idle time of the device",
        "Copies",
        "Python functions",
        "Memory",
    ]
    assert "h2d, pageable" in {row[-1] for row in rows(found["Copies"])}
    assert rows(found["Idle time of the device"])[-1][-1] == "all idle time"
    assert len(rows(found["Kernels"])) == 10
    assert len(rows(by_title(profile_sections(recorded, 5))["Kernels"])) == 5


def test_page_markdown_terminal_and_json_have_the_same(
    recorded: DiagnosisReport, capsys: pytest.CaptureFixture[str]
) -> None:
    page = diagnosis_page(recorded, everything=True)
    print_sections(profile_sections(recorded))
    screen = capsys.readouterr().err
    for text in (html_page(page), markdown_page(page), screen):
        assert "Kernels launched a step: " in text
        assert "all idle time" in text
        assert "Step " in text
    assert from_json(DiagnosisReport, to_json(recorded)) == recorded


def test_idle_time_is_told_in_milliseconds_of_a_step(recorded: DiagnosisReport) -> None:
    figures = recorded.figures
    assert figures is not None
    assert figures.idle is not None
    assert figures.step_ms is not None
    assert figures.gpu_idle_time_ms == pytest.approx(figures.idle.total * figures.step_ms)
    assert figures.sync_overhead_ms is not None
    assert figures.sync_overhead_ms <= figures.gpu_idle_time_ms
    assert figures.memory_transfer_concurrent is not None
    assert 0 <= figures.memory_transfer_concurrent <= 1


def test_the_picture_of_a_step_shows_host_and_device_on_one_scale(
    recorded: DiagnosisReport,
) -> None:
    (picture,) = by_title(profile_sections(recorded))["One step"].blocks
    assert isinstance(picture, Picture)
    root = ET.fromstring(svg(picture.chart))
    width, height = numbers(root, "width", "height")
    for bar in root.iter(f"{SVG}rect"):
        x, y, wide, high = numbers(bar, "x", "y", "width", "height")
        assert 0 <= x <= x + wide <= width + 0.5
        assert 0 <= y <= y + high <= height
    said = texts(svg(picture.chart))
    assert {"parts of the step", "calls of CUDA", "copies", "forward", "backward"} <= set(said)
    assert any(words.startswith("kernels of stream ") for words in said)


def test_two_steps_are_drawn_on_the_scale_of_the_longer_one() -> None:
    row = PictureRow("copies", 1.0, ((0.0, 4.0, "copies", 1.0),))
    short, long = StepPicture(1, 4.0, (row,)), StepPicture(3, 8.0, (row,))
    (section,) = picture_section([("before", long), ("after", short), ("none", None)])
    before, after = section.blocks
    assert isinstance(before, Picture)
    assert isinstance(after, Picture)
    for picture in (before, after):
        bar = next(ET.fromstring(svg(picture.chart)).iter(f"{SVG}rect"))
        assert numbers(bar, "x", "width") == [0, 240]
    assert "Step 3 of the window of before: 8.00 ms" in texts(svg(before.chart))


def test_operators_have_their_shapes() -> None:
    shares = (OperatorShare("aten::mm", "matmul", 0.4, 2.0, "[8, 3] [3, 5]"),)
    figures = ProfileFigures(step_ms=10.0, top_operators=shares)
    (section,) = profile_sections(replace(empty(), figures=figures))
    assert rows(section) == (("4.00 ms", "2.00", "40.0 %", "aten::mm", "[8, 3] [3, 5]"),)


def test_memory_is_told_by_part_of_the_step_and_by_line() -> None:
    line = Allocation("train.py", 12, "forward", "forward", 2.0, 3 << 20, 2 << 20)
    trace = MemoryTraceEvent(0, 2, {"forward": 5 << 30, "backward": 7 << 30}, (line,))
    found = by_title(profile_sections(replace(empty(), memory_traces=(trace,))))
    parts = found["Memory of device 0 by part of the step"]
    assert rows(parts) == (("7.00 GiB", "backward"), ("5.00 GiB", "forward"))
    assert rows(found["Memory of device 0 by line"]) == (
        ("3.00 MiB", "2.00", "2.00 MiB", "forward", "train.py:12 in forward"),
    )


def test_a_profile_without_a_timeline_has_no_section() -> None:
    assert profile_sections(empty()) == []


def test_shares_of_unmarked_steps_stay_shares() -> None:
    figures = replace(FIGURES, step_ms=None)
    found = by_title(profile_sections(replace(empty(), figures=figures)))
    assert rows(found["Kernels"])[0][-1] == "hgemm"
    assert not any("ms" in cell for cell in rows(found["Kernels"])[0])
