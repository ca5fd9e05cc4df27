"""The view of a tuning at work: lines in a log, a table in place on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.report_records import in_child, tuning_report

DRIVE = """
import json, sys, time
from dataclasses import replace
from gpurun.records.codec import from_json
from gpurun.records.tuning import PAIR_SIDES, TuningReport
from gpurun.report.live_tuning_table import tuning_view
report = from_json(TuningReport, json.load(open(sys.argv[1])))
view = tuning_view(quiet=QUIET, verbose=VERBOSE)
view.started("train.py", "overlay", 300.0)
try:
    for trial in report.trials:
        view.trial_started(trial.number, trial.purpose, trial.knobs)
        view.trial_progress(10, 50)
        DURING
        view.trial_finished(trial)
        view.decision(f"decision {trial.number} [b]")
    view.note("the GPU is shared")
    for number, (purpose, trial) in enumerate(zip(PAIR_SIDES, report.trials), 4):
        view.trial_started(number, purpose, trial.knobs)
        view.trial_finished(replace(trial, number=number, purpose=purpose))
    view.proof_update("3 pairs, settled")
    view.finished(report)
except KeyboardInterrupt:
    pass
finally:
    view.close()
    view.close()
print("script's own")
"""


def drive(
    folder: Path,
    columns: int | None = None,
    during: str = "",
    quiet: bool = False,
    verbose: bool = False,
) -> str:
    code = DRIVE.replace("QUIET", str(quiet)).replace("VERBOSE", str(verbose))
    code = code.replace("DURING", during or "pass")
    stdout, shown = in_child(code, folder, tuning_report(), columns, NO_COLOR="1")
    assert stdout == "script's own\n"
    return shown


def test_a_log_gets_one_line_a_stage_and_no_decision(tmp_path: Path) -> None:
    shown = re.sub(r"(took|trials in) [0-9.]+ m?s", r"\1 TIME", drive(tmp_path))
    assert shown.splitlines() == [
        "gpurun: tuning train.py (budget 5 min, isolation: overlay)",
        "gpurun: script as it is: 800 samples/s, step p50 38.8 ms, memory 1.00 GiB, took TIME",
        "gpurun: search: 2 trials in TIME, the fastest 1,640 samples/s: loader_workers 8",
        "gpurun: the GPU is shared",
        "gpurun: proof: 3 pairs, settled, 2 trials in TIME",
        "gpurun: tuning ended after 3 trials in 1 min 41 s",
    ]


def test_a_stage_that_measured_nothing_says_why(tmp_path: Path) -> None:
    failing = "trial = replace(trial, samples_per_second=None, status='failed', reason='no C++')"
    shown = drive(tmp_path, during=failing)
    assert re.search(r"script as it is: .*, took [0-9.]+ m?s: failed: no C\+\+\n", shown)
    assert re.search(r"search: 2 trials in [0-9.]+ m?s, none was measured: no C\+\+\n", shown)


def test_verbose_writes_one_line_an_event(tmp_path: Path) -> None:
    assert drive(tmp_path, verbose=True).splitlines() == [
        "gpurun: tuning train.py (budget 5 min, isolation: overlay)",
        "gpurun: trial 1, probe: as it is …",
        "gpurun: trial 1, 800 samples/s, step p50 38.8 ms, memory 1.00 GiB, took 6.40 s",
        "gpurun: decision 1 [b]",
        "gpurun: trial 2, screen: loader_workers 8 …",
        "gpurun: trial 2, 1,640 samples/s, step p50 18.9 ms, memory 1.00 GiB, took 6.40 s: kept",
        "gpurun: decision 2 [b]",
        "gpurun: trial 3, screen: loader_workers 8, compile default …",
        "gpurun: trial 3, took 6.40 s: failed: no C++ [31mcompiler",
        "gpurun: decision 3 [b]",
        "gpurun: the GPU is shared",
        "gpurun: trial 4, pair baseline: as it is …",
        "gpurun: trial 4, 800 samples/s, step p50 38.8 ms, memory 1.00 GiB, took 6.40 s",
        "gpurun: trial 5, pair candidate: loader_workers 8 …",
        "gpurun: trial 5, 1,640 samples/s, step p50 18.9 ms, memory 1.00 GiB, took 6.40 s: kept",
        "gpurun: proof: 3 pairs, settled",
        "gpurun: tuning ended after 3 trials in 1 min 41 s",
    ]


def test_quiet_shows_nothing(tmp_path: Path) -> None:
    assert drive(tmp_path, quiet=True) == ""
    assert drive(tmp_path, columns=110, quiet=True) == ""


@pytest.mark.parametrize("columns", [110, 60])
def test_a_terminal_gets_one_line_a_trial_that_fits_it(tmp_path: Path, columns: int) -> None:
    shown = drive(tmp_path, columns)
    last = shown[shown.rindex("gpurun --optimize") :].splitlines()
    rows = [line.split() for line in last if line.strip()[:1].isdigit()]
    numbered = [r for r in rows if r[0] in "123"]
    assert [r[0] for r in numbered] == ["1", "2", "3"]
    assert "1,640" in numbered[1]
    assert "×" not in "".join(last), "trials of different minutes are not compared"
    assert any("failed" in word for word in numbered[2])
    assert max(len(line) for line in last if "\x1b" not in line) <= columns
    assert any("the GPU is shared" in line for line in last)
    assert any("decision 3 [b]" in line for line in last)
    assert any("proof: 3 pairs, settled" in line for line in last)


def test_a_running_trial_shows_how_far_it_is(tmp_path: Path) -> None:
    assert "10 of 50 steps" in drive(tmp_path, 110, during="time.sleep(0.6)")


def test_ctrl_c_leaves_the_cursor_visible(tmp_path: Path) -> None:
    shown = drive(tmp_path, 110, during="raise KeyboardInterrupt")
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
