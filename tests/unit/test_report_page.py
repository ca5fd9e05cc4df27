"""The page of a run: its sections, its escaping, and folders that are half written or foreign."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.commands.diagnosed_launch import diagnose_run
from gpurun.errors import GpurunError
from gpurun.records.codec import from_json, to_json
from gpurun.records.finding import Finding, FindingType, Location
from gpurun.records.result import RunResult
from gpurun.records.scaling import ScalingPoint, ScalingReport
from gpurun.records.tuning import Ceilings, GuardVerdict, LossCurves, Rejection
from gpurun.report.page.headline_section import figure_grid
from gpurun.report.page.html_page import html_page
from gpurun.report.page.markdown_page import markdown_page
from gpurun.report.page.page_blocks import Page, PagePart, Section, Table
from gpurun.report.page.run_contents import Recording, RunContents, read_contents
from gpurun.report.page.run_page import run_page
from gpurun.report.terminal_table import Column, Grid
from tests.conftest import REPOSITORY
from tests.recordings import unpacked
from tests.unit.recorded_runs import row, steps, write_events
from tests.unit.report_records import run_result, trial, tuning_report
from tests.unit.test_bench_trends import history, shown, stepping

COMPARED = "tests/data/h200/comparison_planted.json"
HOSTILE = '"><script>alert(1)</script>|`x`[a](javascript:b)\n# h\n|\x1b[31m\udcff'
PRICE = ReportConfig(price_per_hour=2.0)


class Seen(HTMLParser):
    """Tags, headings and text of a document; every opened element must be closed."""

    VOID = ("meta", "link", "br", "wbr", "rect", "line", "polyline", "circle")

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(document)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open and self.open[-1] in ("h2", "h3"):
            self.headings.append(data)


def page_of(*runs: RunContents, config: ReportConfig = PRICE) -> Page:
    return run_page(runs, config)


def contents_of(folder: Path) -> RunContents:
    return read_contents(folder, diagnose_run)


def headings(page: Page) -> list[str]:
    return Seen(html_page(page)).headings


def tuned(**changes: Any) -> RunContents:
    report = tuning_report(**changes)
    return RunContents("a-run", report.command, tuning=report, trials=report.trials)


def finding(text: str) -> Finding:
    return Finding(
        FindingType.DATA_LOADING, 0.9, text, (), Location(text, 3, text), (text,), None, 2.0
    )


def test_a_recorded_tuning_has_every_section_of_its_data(tmp_path: Path) -> None:
    contents = contents_of(unpacked("gpt124m_tuning", tmp_path))
    page = page_of(contents)
    assert headings(page) == [
        "Summary", "Ladder", "Step", "Devices over time", "Loss", "Time, energy and cost", "Trials",
    ]  # fmt: skip
    told = " ".join(Seen(html_page(page)).texts)
    assert "9.73× faster" in told
    assert "GPU activity, %: after" in told
    assert contents.missing == ()
    activity = [r.gauges[0].series[0] for r in contents.recordings]
    assert [series.mean for series in activity] == pytest.approx([95, 85], abs=3)
    for picture in re.findall(r"<svg[^>]*>", html_page(page)):
        assert re.search(r' width="\d+".* height="[\d.]+".* role="img" aria-label="[^"]+"', picture)


def test_a_recorded_run_shows_its_findings(tmp_path: Path) -> None:
    page = page_of(contents_of(unpacked("simplenet_as_written", tmp_path)))
    assert "Findings" in headings(page)
    assert "Ladder" not in headings(page)
    assert "the training waits for data" in markdown_page(page).lower()


def test_the_price_alone_brings_up_money(tmp_path: Path) -> None:
    contents = contents_of(unpacked("simplenet_as_written", tmp_path))
    assert "$" in html_page(page_of(contents))
    assert "$" not in html_page(page_of(contents, config=ReportConfig()))


def test_two_runs_stand_side_by_side() -> None:
    one = RunContents("one", recordings=(Recording("", run_result(samples_per_second=100.0)),))
    two = RunContents("two", recordings=(Recording("", run_result(samples_per_second=250.0)),))
    page = page_of(one, two)
    assert headings(page)[:3] == ["Side by side", "Figures", "Step"]
    assert "two has ×2.50 the throughput of one." in markdown_page(page)
    assert "| samples/s | 100 | 250 |" in markdown_page(page)


def test_runs_of_different_scripts_bear_their_names_and_are_not_compared() -> None:
    fast, slow = (Recording("after", run_result(samples_per_second=x)) for x in (100.0, 2.0))
    one = RunContents("20261127-035610-30c50d", ("jobs/images.py",), recordings=(fast,))
    two = RunContents("20261127-035100-144296", ("jobs/words.py", "--big"), recordings=(slow,))
    shown = markdown_page(page_of(one, two))
    assert "throughput of" not in shown
    assert "different scripts" in shown
    assert "images.py after" in shown
    assert "Run 20261127-035610-30c50d (images.py)" in shown
    again = RunContents("20261127-045100-144296", ("/home/me/images.py",), recordings=(slow,))
    unknown = RunContents("20261127-055100-144296", recordings=(slow,))
    for other in (again, unknown):
        assert "has ×0.02 the throughput of" in markdown_page(page_of(one, other))
    assert "20261127-045100-144296 after" in markdown_page(page_of(one, again, two))
    modules = (replace(one, command=("-m", name)) for name in ("jobs.train", "jobs.evaluate"))
    assert "throughput of" not in markdown_page(page_of(*modules))


def test_names_and_long_figures_in_cells_may_be_broken_where_they_can_be_read() -> None:
    device = "1 × NVIDIA H100 80GB HBM3"
    columns = (Column("knob"), Column("device", right=True), Column(""), Column(""))
    grid = Grid(columns, (("loader_pin_memory", device, "", ""),))
    page = Page("page", (PagePart("", (Section("", (Table(grid),)),)),))
    shown = html_page(page)
    assert "loader_<wbr>pin_<wbr>memory" in shown
    assert f'<td class="r t" data-name="device">{device}' in shown


def test_the_loss_of_what_was_kept_is_shown_in_the_range_of_the_baseline() -> None:
    curves = LossCurves((2.0, 1.5), (2.0, 1.6), (1.9, 1.4), (2.1, 1.7))
    guard = GuardVerdict(True, 0.01, 0.02, (), curves, compared=("losses",))
    told = markdown_page(page_of(tuned(guard=guard)))
    assert "highest of all baseline trials ends at 1.70" in told
    assert "candidate ends at 1.60" in told


def test_losses_are_compared_over_the_steps_of_both() -> None:
    """A faster side trains on in its turns, and a later step says nothing of the other side."""
    curves = LossCurves((2.0, 1.5), (2.0, 1.6, 0.9, 0.4), (1.9, 1.4), (2.1, 1.7))
    guard = GuardVerdict(True, 0.01, 0.02, (), curves, compared=("losses",))
    told = markdown_page(page_of(tuned(guard=guard)))
    assert "Of the 2 steps of both: " in told
    assert "candidate ends at 1.60" in told


def test_figures_of_whole_runs_are_not_told_of_trials() -> None:
    launches = [("before", run_result(final_loss=4.6, wall_seconds=20.0))]
    whole = {"whole run", "last loss"}
    assert whole <= {row[0] for row in figure_grid(launches).rows}
    assert not whole & {row[0] for row in figure_grid(launches, trials=True).rows}


def test_a_rejected_change_shows_both_curves() -> None:
    curves = LossCurves((2.0, 1.5, 1.0), (2.0, None, 3.0))
    rejection = Rejection({"tf32": True}, GuardVerdict(False, 0.2, 0.01, ("apart",), curves))
    page = page_of(tuned(rejections=(rejection,)))
    assert "Loss guard" in headings(page)
    assert "candidate ends at 3.00" in markdown_page(page)


def test_ceilings_are_shown_as_bars_with_words() -> None:
    page = page_of(tuned(ceilings=Ceilings(500.0, 2000.0, 450.0, 1.1, "")))
    assert "loader alone: 500 samples/s" in markdown_page(page)
    assert "at most" not in markdown_page(page)


def scaled() -> ScalingReport:
    points = (
        ScalingPoint(1, 100.0, 1.0, 1.0, None, None, None, None),
        ScalingPoint(2, 190.0, 1.9, 0.95, (0.9, 1.0), None, None, None),
        ScalingPoint(4, None, None, None, None, None, None, None, error="out of memory"),
    )
    return ScalingReport(
        "weak", "failed", 5, ("train.py",), "NVIDIA H200", 4, False, None, 3, None, points, (),
        None, 60.0,
    )  # fmt: skip


def test_scaling_is_a_curve_with_a_table() -> None:
    page = page_of(RunContents("s", ("train.py",), scaling=scaled()))
    assert "Speedup by devices" in html_page(page)
    assert "**2 devices: 1.90× the throughput of 1, efficiency 95.0 %" in markdown_page(page)
    assert "2 devices: ×1.90, efficiency 95.0 %" in markdown_page(page)
    assert "4: out of memory" in markdown_page(page)


@pytest.mark.parametrize("name", ["comparison_planted", "comparison_equal"])
def test_a_document_of_a_comparison_is_a_page(name: str) -> None:
    contents = contents_of(REPOSITORY / f"tests/data/h200/{name}.json")
    assert contents.comparison is not None
    assert any(title.startswith("Comparison: ") for title in headings(page_of(contents)))


def test_a_history_is_a_picture_a_trend_with_its_changes(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(json.dumps(to_json(history(shown(stepping())))))
    page = page_of(contents_of(path))
    assert "History" in headings(page)
    told = markdown_page(page)
    assert "24 records, samples/s: newest" in told
    assert "* regression −10." in told


def test_foreign_text_stays_text_in_html_and_markdown() -> None:
    report = tuning_report(
        command=(HOSTILE,),
        invocation=("gpurun", HOSTILE),
        decisions=(HOSTILE,),
        findings=(finding(HOSTILE),),
        trials=(trial(1, {HOSTILE: HOSTILE}, None, reason=HOSTILE),),
        isolation=HOSTILE,
    )
    result = run_result(notes=(HOSTILE,), command=(HOSTILE,), status=HOSTILE)
    run = RunContents(
        HOSTILE, (HOSTILE,), tuning=report, recordings=(Recording("", result),),
        trials=report.trials, missing=(HOSTILE,),
    )  # fmt: skip
    page = page_of(run, run)
    document = html_page(page)
    document.encode()
    seen = Seen(document)
    assert "script" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert any("<script>alert(1)</script>" in text for text in seen.texts)
    markdown = markdown_page(page)
    markdown.encode()
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown)
    assert not re.search(r"(?<!\\)<script", outside)
    assert not re.search(r"(?<!\\)\[a", outside)
    assert not re.search(r"^# h", markdown, re.MULTILINE)


def test_cells_of_markdown_tables_cannot_be_split() -> None:
    run = RunContents("r", recordings=(Recording("", run_result(status="a|b\nc")),))
    (line,) = [x for x in markdown_page(page_of(run)).splitlines() if x.startswith("| status")]
    assert line == "| status | a\\|b c |"


def test_markdown_holds_every_trial_and_every_decision() -> None:
    shown = markdown_page(page_of(tuned()))
    assert "| 3 | screen | loader\\_workers 8, compile default |" in shown
    assert "failed: no C++ \\[31mcompiler |" in shown
    assert "* the step waits 41 % for data" in shown


def test_a_document_of_another_shape_is_missing_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = unpacked("simplenet_as_written", tmp_path)
    (run / "tuning.json").write_text('{"verdict": "faster", "new_field": 1}')
    (run / "scaling.json").write_text("{torn")
    contents = contents_of(run)
    assert contents.recordings
    assert any(line.startswith("tuning.json has another shape") for line in contents.missing)
    assert any(line.startswith("scaling.json cannot be read") for line in contents.missing)
    assert "Missing: scaling.json" in html_page(page_of(contents))


@pytest.mark.parametrize("document", ["[]", "null", "3", '"text"', '{"status": {}}'])
def test_a_result_of_another_shape_never_breaks_the_page(tmp_path: Path, document: str) -> None:
    (tmp_path / "result.json").write_text(document)
    (tmp_path / "tuning.json").write_text(document)
    contents = contents_of(tmp_path)
    assert contents.missing
    assert html_page(page_of(contents))


def test_a_run_that_was_killed_is_summed_up_from_its_events(tmp_path: Path) -> None:
    rows = [row(10.0 * n, loss=1.0 / n) for n in range(1, 60)]
    path = write_events(tmp_path, [steps(rows)])
    path.write_text(path.read_text() + '{"event": "steps", "clo')
    contents = contents_of(tmp_path)
    assert contents.recordings[0].loss is not None
    assert "result.json: the run was cut off" in contents.missing
    assert any("the last line is torn" in line for line in contents.missing)
    assert "Loss" in headings(page_of(contents))


def test_events_that_a_damaged_recording_lacks_are_told(tmp_path: Path) -> None:
    """They were read by the diagnosis, as the rest of the recording was."""
    run = unpacked("tiny_kernels", tmp_path, REPOSITORY / "tests" / "data" / "h100_profiles")
    (trace,) = run.glob("profile/kineto-*.json")
    trace.write_text(trace.read_text().replace('"ph": "X"', '"ph": "X', 1))
    missing = read_contents(run, diagnose_run).missing
    assert any("is no JSON" in line and "left out" in line for line in missing)


def test_a_tuning_that_was_cut_off_shows_its_trials(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / "01"
    folder.mkdir(parents=True)
    (folder / "trial.json").write_text(json.dumps(to_json(trial(1, {}, 100.0))))
    contents = contents_of(tmp_path)
    assert [t.number for t in contents.trials] == [1]
    assert "Trials" in headings(page_of(contents))
    assert contents.missing == ("tuning.json: the tuning did not come to its end",)


def test_trials_outside_of_the_run_folder_are_not_read(tmp_path: Path) -> None:
    report = tuning_report(trials=(trial(1, {}, 800.0, run_dir="../elsewhere"),))
    run = tmp_path / "run"
    run.mkdir()
    (run / "tuning.json").write_text(json.dumps(to_json(report)))
    assert contents_of(run).recordings == ()


def test_a_trial_that_ran_alone_is_preferred_to_one_that_took_turns(tmp_path: Path) -> None:
    run = unpacked("gpt124m_tuning", tmp_path)
    in_turn = contents_of(run)
    assert [r.folder for r in in_turn.recordings] == ["trials/09", "trials/10"]
    assert all(r.gauges for r in in_turn.recordings)
    told = json.loads((run / "tuning.json").read_text())
    told["proof"]["live"] = True
    (run / "tuning.json").write_text(json.dumps(told))
    assert [r.folder for r in contents_of(run).recordings] == ["trials/02", "trials/03"]
    trials = told["trials"]
    alone = next(t for t in trials if t["run_dir"] == "trials/03")
    path = run / "trials" / "03" / "result.json"
    result = json.loads(path.read_text())
    for outcome, folder in (("skipped", "trials/03"), ("applied", "trials/10")):
        alone["knobs"]["channels_last"] = True  # one more than was chosen
        (run / "tuning.json").write_text(json.dumps(told))
        more = {"knob": "channels_last", "outcome": outcome, "detail": ""}
        path.write_text(json.dumps({**result, "knobs": [*result["knobs"], more]}))
        assert contents_of(run).recordings[1].folder == folder
    told["trials"] = [t for t in trials if t["purpose"].startswith("pair ")]
    (run / "tuning.json").write_text(json.dumps(told))
    paired = contents_of(run)
    assert [r.gauges for r in paired.recordings] == [(), ()]
    assert all(r.result is not None and r.result.devices == () for r in paired.recordings)
    assert len(paired.missing) == 2


def test_a_trial_of_the_search_that_took_turns_shows_no_series_of_its_device(
    tmp_path: Path,
) -> None:
    run = unpacked("gpt124m_tuning", tmp_path)
    told = json.loads((run / "tuning.json").read_text())
    told["proof"]["live"] = True
    for found in told["trials"]:
        if found["run_dir"] == "trials/03":
            found["in_turns"] = True
    (run / "tuning.json").write_text(json.dumps(told))
    before, after = contents_of(run).recordings
    assert before.gauges
    assert not after.gauges
    assert any("took turns with another launch" in line for line in contents_of(run).missing)


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpurunError, match="holds no record of a run"):
        contents_of(tmp_path)


def test_the_document_of_a_run_is_a_page(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(to_json(run_result(command=("train.py",)))))
    contents = contents_of(path)
    assert contents.recordings[0].result == from_json(RunResult, json.loads(path.read_text()))
    assert "1,234" in html_page(page_of(contents)) or "1,235" in html_page(page_of(contents))


@pytest.mark.parametrize("text", ["print('a script')", "[]", '{"schema": "gpurun/tuning@2"}', "\0"])
def test_a_file_that_is_no_document_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(GpurunError, match="holds no record of a run"):
        contents_of(path)


def replaced(value: Any, odd: object) -> Iterator[Any]:
    """The document with one leaf replaced, for each of its leaves."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: changed} for changed in replaced(inner, odd))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            before, after = value[:index], value[index + 1 :]
            yield from ([*before, changed, *after] for changed in replaced(inner, odd))
    else:
        yield odd


@pytest.mark.parametrize("odd", ["another word", 1e308, float("inf"), None])
@pytest.mark.parametrize("kind", ["scaling", "comparison", "history"])
def test_no_odd_value_in_a_document_ends_in_a_traceback(
    tmp_path: Path, kind: str, odd: object
) -> None:
    documents = {
        "scaling": to_json(scaled()),
        "comparison": json.loads((REPOSITORY / COMPARED).read_text()),
        "history": to_json(history(shown(stepping()[8:16]))),
    }
    path = tmp_path / "document.json"
    pages = refusals = 0
    for document in replaced(documents[kind], odd):
        path.write_text(json.dumps(document))
        try:
            contents = contents_of(path)
        except GpurunError:
            refusals += 1
            continue
        assert html_page(page_of(contents))
        assert markdown_page(page_of(contents))
        pages += 1
    assert (pages > 0) is (odd != float("inf"))  # which JSON does not have
    assert pages + refusals > 50
