"""`gpurun diagnose` on run folders and on recordings made elsewhere."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from gpurun.cli import main
from gpurun.commands.diagnose import changed_section
from gpurun.records.codec import to_json
from gpurun.records.scaling import ScalingLaunch, ScalingPoint, ScalingReport
from gpurun.report.page.markdown_page import markdown_page
from gpurun.report.page.page_blocks import Page, PagePart
from gpurun.rundir import write_json
from scripts.generate_schemas import all_schemas
from tests.conftest import REPOSITORY
from tests.recordings import unpacked
from tests.unit.recorded_runs import loader, root, steady, write_events

DATA = REPOSITORY / "tests" / "data"
PROFILES = DATA / "profiles"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = main(["diagnose", *map(str, words)])
    return code, capsys.readouterr().err


def document(tmp_path: Path, *words: str | Path) -> dict[str, object]:
    assert main(["diagnose", *map(str, words), "--quiet", "--json", "out.json"]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    jsonschema.validate(found, all_schemas()["diagnosis@1.json"])
    assert isinstance(found, dict)
    return found


def types(found: dict[str, object]) -> list[str]:
    findings = found["findings"]
    assert isinstance(findings, list)
    return [finding["type"] for finding in findings]


def test_a_plain_run_on_a_gpu_is_told_its_loader(tmp_path: Path) -> None:
    found = document(tmp_path, DATA / "h200_slow_vision" / "as_written")
    assert types(found)[0] == "data_loading"
    assert found["figures"] is None
    assert found["steps_profiled"] is None


def test_a_plain_run_names_its_synchronisation(tmp_path: Path) -> None:
    found = document(tmp_path, unpacked("simplenet_as_written", tmp_path))
    assert types(found)[:2] == ["data_loading", "cpu_gpu_sync"]


def test_a_tuned_run_has_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, unpacked("simplenet_tuned", tmp_path))
    assert code == 0
    assert "verdict=ok exit=0 critical=0 warnings=0" in text


def test_a_report_of_nsight_systems_made_elsewhere_is_diagnosed(tmp_path: Path) -> None:
    found = document(tmp_path, _named("2025"))
    assert {"launch_bound", "host_bound", "h2d_copy"} <= set(types(found))
    assert all(each["replayed_gain"] > 1 for each in found["findings"])
    assert found["steps_profiled"] == 49
    assert found["result"] is None


def test_the_names_and_not_the_environment_of_a_recording_reach_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    copy = tmp_path / "secret.sqlite"
    shutil.copyfile(_named("2025"), copy)
    copy.chmod(0o600)
    with sqlite3.connect(copy) as database:
        database.execute("INSERT INTO StringIds VALUES (999999, 'API_TOKEN=hunter2')")
    document(tmp_path, copy)
    assert "hunter2" not in (tmp_path / "out.json").read_text()
    _, text = told(capsys, copy, "--all")
    assert "hunter2" not in text


def test_kernel_metrics_join_the_timeline_of_the_same_training(tmp_path: Path) -> None:
    found = document(tmp_path, _named("2025"), _ncu())
    assert found["sources"] == ["device timeline", "Nsight Compute"]


COUNTERS = """step 1 loss 2.30, 12 img/s
==PROF== Profiling "ampere_sgemm" - 0: 0%....50%....100% - 9 passes
"ID","Process ID","Kernel Name","Block Size","Grid Size","Device","gpu__time_duration.sum",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed","launch__registers_per_thread"
"","","","","","","us","%","register/thread"
"0","77","ampere_sgemm_128x64_tn","(256, 1, 1)","(64, 1, 1)","0","1,204.2","35.02","122"
"1","77","ampere_sgemm_128x64_tn","(256, 1, 1)","(64, 1, 1)","0","1,200.2","35.00","122"
"2","77","void f<int, (bool)1>(T1 *, ""x"")","(256, 1, 1)","(64, 1, 1)","0","n/a","nan","inf"
"""


def test_the_counters_of_kernels_are_shown_and_low_ones_are_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernels.csv").write_text(COUNTERS.replace("\\\n", ""))
    code, text = told(capsys, "kernels.csv", "--markdown", "report.md")
    assert code == 0
    assert "kernel_efficiency (0.74): SM throughput is 35 %: ampere_sgemm_128x64_tn" in text
    rows = [line.split() for line in text.splitlines() if line.endswith(("64_tn", " f"))]
    shown = "1,202 µs 2 35.0 % n/a n/a n/a 122 n/a 64 256 ampere_sgemm_128x64_tn"
    assert rows[-2:] == [
        shown.split(),
        ["n/a", "1", "n/a", "n/a", "n/a", "n/a", "n/a", "n/a", "64", "256", "f"],
    ]
    assert "| 1,202 µs | 2 | 35.0 % |" in (tmp_path / "report.md").read_text()
    figures = document(tmp_path, "kernels.csv")["figures"]
    assert isinstance(figures, dict)
    sgemm, other = figures["kernel_counters"]
    assert sgemm["sm_percent"] == pytest.approx(35.01)
    assert (sgemm["launches"], sgemm["registers"], sgemm["grid"]) == (2, 122, [64, 1, 1])
    assert (other["sm_percent"], other["mean_us"], other["registers"]) == (None, None, None)


def test_a_refused_permission_is_told_with_its_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"
    header = '"ID","Process ID","Kernel Name","Device"\n'
    for content in (refused, refused + header, header + refused):
        (tmp_path / "kernels.csv").write_text(content)
        code, text = told(capsys, "kernels.csv")
        assert code == 2
        assert "ERR_NVGPUCTRPERM - The user does not have permission" in text
        assert "NVreg_RestrictProfilingToAdminUsers=0" in text


def test_counters_that_were_not_measured_are_no_clean_bill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.csv").write_text('"ID","Kernel Name","sm__x"\n"0","gemm","n/a"\n')
    _, text = told(capsys, "k.csv")
    assert "no figure was measured that a diagnosis could use" in text
    assert "none of the counters" in text


def test_thresholds_come_from_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, kernels = tmp_path / "gpurun.toml", DATA / "profiles" / "h200_ncu_raw_mlp.csv"
    _, text = told(capsys, kernels)
    assert "critical=1" in text
    config.write_text("[diagnose]\nsm_throughput = [0.29, 0.1]\n")
    assert "kernel_efficiency" in types(document(tmp_path, kernels))
    _, text = told(capsys, kernels)
    assert "critical=0 warnings=1" in text
    config.write_text("[diagnose]\nsm_troughput = [0.29, 0.1]\n")
    code, text = told(capsys, kernels)
    assert code == 2
    assert "has no threshold 'sm_troughput'" in text
    assert "did you mean 'sm_throughput'?" in text


@pytest.mark.parametrize("pair", ["[0.5, 0.1]", "[0.1, 0.1]"])
def test_thresholds_in_the_wrong_order_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: str
) -> None:
    (tmp_path / "gpurun.toml").write_text(f"[diagnose]\nfragmentation = {pair}\n")
    code, text = told(capsys, DATA / "h200_slow_vision" / "as_written")
    assert code == 2
    assert "must be below" in text


def test_markdown_is_written(tmp_path: Path) -> None:
    run = DATA / "h200_slow_vision" / "as_written"
    assert main(["diagnose", str(run), "--quiet", "--markdown", "out.md"]) == 0
    assert "## Critical issues" in (tmp_path / "out.md").read_text()


def test_a_run_that_crashed_is_still_diagnosed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_events(run, [loader(), root(), steady(60, step_ms=10, data_ms=8)])
    found = document(tmp_path, run)
    assert types(found)[0] == "data_loading"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nothing", None),
        ("trace.json", b""),
        ("trace.json", b'{"traceEvents": [{"ph": "X", "cat": "kern'),
        ("trace.json", b"[1, 2]"),
        ("trace.json.gz", gzip.compress(b'{"traceEvents": [', mtime=0)[:20]),
        ("report.sqlite", b"SQLite format 3\0 and no more"),
        ("report.sqlite", b"hello"),
        ("kernels.csv", b"a,b\n1,2\n"),
        ("kernels.csv", b"\xff\xfe\x00"),
        ("notes.txt", b"hello"),
        ("report.nsys-rep", b"hello"),
        ("kernels.ncu-rep", b"hello"),
    ],
)
def test_what_cannot_be_read_is_refused_in_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, text = told(capsys, name)
    lines = text.splitlines()
    assert code == 2
    assert len(lines) == 3
    assert lines[-1] == "verdict=error exit=2"
    assert all(line.startswith("gpurun: ") for line in lines[:2])
    assert "internal" not in text


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    code, text = told(capsys, "empty")
    assert code == 2
    assert "holds no record of a run" in text


def test_of_a_tuning_the_launch_with_the_settings_that_were_kept_is_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning = unpacked("gpt124m_tuning", tmp_path)
    chosen = json.loads((tuning / "tuning.json").read_text())["chosen"]["knobs"]
    found = document(tmp_path, tuning)
    launch = Path(str(found["subject"]))
    assert launch.parent.parent == tuning
    assert json.loads((launch / "trial.json").read_text())["knobs"] == chosen
    _, text = told(capsys, tuning)
    assert f"note: this is trials/{launch.name} of the tuning, kept: {next(iter(chosen))}" in text
    shutil.rmtree(launch)
    (tuning / "tuning.json").unlink()
    _, text = told(capsys, tuning)
    assert "the newest launch there" in text


def test_of_a_scaling_the_last_launch_of_the_largest_count_is_diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["01-of-1", "02-of-2", "03-of-2", "04-of-2-no-exchange", "05-of-4"]
    for name in names:
        launch = tmp_path / "run" / "launches" / name
        launch.mkdir(parents=True)
        write_events(launch, [loader(), root(), steady(60, step_ms=10, data_ms=8)])
    launches = [
        ScalingLaunch(1, "no" not in name, 1.0, 1.0, 1.0, f"launches/{name}", None)
        for name in names
    ]
    nothing = (100.0, None, None, None, None, None, None)
    points = (
        ScalingPoint(1, *nothing, launches=tuple(launches[:1])),
        ScalingPoint(2, *nothing, launches=tuple(launches[1:4])),
        ScalingPoint(4, *nothing, launches=(replace(launches[4], error="out of memory"),)),
    )
    report = ScalingReport(
        "weak", "ok", 0, ("train.py",), "CPU", 2, False, None, 3, None, points, (), None, 60.0
    )
    write_json(tmp_path / "run" / "scaling.json", to_json(report))
    code, text = told(capsys, "run")
    assert code == 0
    assert "diagnosis of run/launches/03-of-2" in text
    assert "data_loading" in text
    assert "note: this is 03-of-2, the scaling's last launch of 2 ranks" in text
    assert "note: the scaling's last launch of 1 rank: run/launches/01-of-1" in text


def test_two_run_folders_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("read_in_forward-clean", "read_in_forward")
    runs = [unpacked(name, tmp_path, DATA / "h100_profiles") for name in names]
    code, text = told(capsys, *runs, "--json", "out.json", "--markdown", "out.md")
    assert code == 0
    found = json.loads((tmp_path / "out.json").read_text())
    jsonschema.validate(found, all_schemas()["profile_comparison@1.json"])
    first = found["changes"][0]
    assert (first["name"], first["change"]) == ("cudaStreamSynchronize", "added")
    row = next(line for line in text.splitlines() if "call: cudaStreamSynchronize" in line)
    assert row.split()[:5] == ["+3.20", "ms", "101", "%", "added"]
    assert "not explained" in text
    assert "New cause: cpu_gpu_sync" in text
    assert "read_in_forward.py:15" in text
    assert text.splitlines()[-1].startswith("verdict=ok exit=0 difference_ms=3.17 explained_ms=3.2")
    markdown = (tmp_path / "out.md").read_text()
    assert "| added |" in markdown
    assert "not explained" in markdown
    section = changed_section(*runs)
    assert markdown_page(Page("A regression", (PagePart("", (section,)),))).count("| added |") > 0


def test_a_comparison_tells_the_causes_that_each_profile_has_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By their replays: without one, copies that gain next to nothing would be told, too."""
    reports = [PROFILES / f"h200_nsys{year}_mlp.sqlite" for year in (2023, 2025)]
    told(capsys, *reports, "--json", "both.json")
    alone = [document(tmp_path, report)["findings"] for report in reports]
    causes = json.loads((tmp_path / "both.json").read_text())["causes"]
    sides = [[each[side] for each in causes if each[side]] for side in ("before", "after")]
    for found, findings in zip(sides, alone, strict=True):
        assert isinstance(findings, list)
        assert all(finding in findings for finding in found)


def test_two_plain_runs_are_compared_by_the_parts_of_their_step(tmp_path: Path) -> None:
    runs = [DATA / "h200_slow_vision" / name for name in ("as_written", "loader_workers_21")]
    assert main(["diagnose", *map(str, runs), "--quiet", "--json", "out.json"]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["basis"] == "step_split"
    assert found["changes"][0]["name"] == "waiting for data"
    assert found["not_explained_ms"] == pytest.approx(0, abs=1e-6)
    assert {cause["type"]: cause["change"] for cause in found["causes"]}["host_bound"] == "added"


def trace(path: Path, rank: int | None = None, steps: int = 2, kernels: int = 2) -> Path:
    """A trace of torch.profiler; `kernels`: of each step."""

    def event(cat: str, name: str, at: float, length: float, **args: object) -> dict[str, object]:
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "ts": at,
            "dur": length,
            "tid": 7,
            "args": args,
        }

    events = [event("user_annotation", f"ProfilerStep#{n}", 100 * n, 90) for n in range(steps)]
    for number in range(2 * kernels):
        at = 100 * (number // kernels) + 20 * (number % kernels)
        events.append(event("kernel", "gemm", at, 9, device=0, stream=7, correlation=number + 1))
    header = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}))
    return path


@pytest.mark.parametrize(
    ("ranks", "one_job"), [((0, 1), True), ((0, 0), False), ((None, 1), False)]
)
def test_recordings_of_different_ranks_are_one_training(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ranks: tuple[int | None, int | None],
    one_job: bool,
) -> None:
    paths = [trace(tmp_path / f"{number}.json", rank) for number, rank in enumerate(ranks)]
    code, text = told(capsys, *paths)
    assert code == 0
    assert ("diagnosis of 0.json, 1.json" in text) is one_job
    assert ("gpurun: comparison of 0.json and 1.json" in text) is not one_job


def test_what_cannot_be_compared_is_refused_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = trace(tmp_path / "whole.json")
    reasons = {
        trace(tmp_path / "unmarked.json", steps=0): "unmarked.json marks no steps",
        trace(tmp_path / "empty.json", kernels=0): "empty.json is empty",
        tmp_path / "absent.json": "there is no",
    }
    clocks = {"by_step": "optimizer", "by_pass": "forward"}
    for name, clock in clocks.items():
        run = tmp_path / name
        shutil.copytree(DATA / "h200_slow_vision" / "as_written", run)
        result = json.loads((run / "result.json").read_text()) | {"clock": clock}
        (run / "result.json").write_text(json.dumps(result))
    pairs = [((whole, path), reason) for path, reason in reasons.items()]
    pairs.append(((tmp_path / "by_step", tmp_path / "by_pass"), "the steps differ"))
    pairs.append(((whole, tmp_path / "by_step"), "measured nothing in common"))
    for paths, reason in pairs:
        code, text = told(capsys, *paths)
        assert (code, len(text.splitlines())) == (2, 3)
        assert reason in text
        assert "internal" not in text


def test_a_damaged_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_events(run, [steady(30)])
    (run / "result.json").write_text('{"status": ')
    code, text = told(capsys, run)
    assert code == 2
    assert "result.json cannot be read" in text


def test_without_a_path_it_is_the_newest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = told(capsys)
    assert code == 2
    assert f"there is no run below {tmp_path / '.gpurun' / 'runs'}" in text
    run = tmp_path / ".gpurun" / "runs" / "20260101-000000-aaaaaa"
    run.mkdir(parents=True)
    write_events(run, [steady(30)])
    assert told(capsys) == told(capsys, run)


def _named(part: str) -> Path:
    return next(path for path in PROFILES.rglob("*.sqlite") if part in path.name)


def _ncu() -> Path:
    return next(path for path in PROFILES.rglob("*.csv") if "raw" in path.name)


def tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_report_is_exported_by_the_tool_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(
        tmp_path / "bin", "nsys", f'while [ "$1" != -o ]; do shift; done; cp {_named("2025")} "$2"'
    )
    tool(tmp_path / "bin", "ncu", f'test "$1" = --import && cat {PROFILES}/h200_ncu_"$5"_mlp.csv')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "report.nsys-rep").touch()
    (tmp_path / "kernels.ncu-rep").touch()
    found = document(tmp_path, "report.nsys-rep", "kernels.ncu-rep")
    assert found["sources"] == ["device timeline", "Nsight Compute"]
    assert found["subject"] == "report.nsys-rep, kernels.ncu-rep"


def test_a_report_without_its_tool_says_how_to_export_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "kernels.ncu-rep").touch()
    code, text = told(capsys, "kernels.ncu-rep")
    assert code == 2
    assert "install Nsight Compute" in text
    assert "ncu --import REPORT --csv --page raw" in text
