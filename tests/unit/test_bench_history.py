"""`gpurun bench history` and `gpurun bench accept`, over a real repository and a real store."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from PIL import Image

from gpurun import main
from gpurun.arguments.bench_subcommand_flags import (
    AcceptOptions,
    HistoryOptions,
    parse_accept,
    parse_history,
)
from gpurun.arguments.flag_table import flags_of
from gpurun.bench.store import open_store
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import INTERRUPTED, BenchmarkPurpose, BenchmarkRecord
from gpurun.records.bench.history import HISTORY_SCHEMA, History
from gpurun.records.codec import from_json
from scripts.generate_schemas import all_schemas
from tests.repositories import commit, git, new_repository
from tests.unit.benchmark_records import LAUNCH, record

COMMITS = 12


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository on main, made once: each commit costs a process."""
    made = new_repository(tmp_path_factory.mktemp("template") / "project")
    (made / ".git" / "info" / "exclude").write_text(".gpurun/\n")
    git(made, "config", "user.name", "Ada")
    git(made, "config", "user.email", "ada@example.org")
    for number in range(COMMITS):
        git(made, "commit", "-q", "--allow-empty", "-m", f"change {number}")
    return made


@pytest.fixture
def folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that repository, in which nothing was measured."""
    made = shutil.copytree(template, tmp_path / "project")
    monkeypatch.chdir(made)
    monkeypatch.delenv("GPURUN_HOME", raising=False)
    return made


def keep(folder: Path, *records: BenchmarkRecord) -> None:
    (folder / ".gpurun").mkdir(exist_ok=True)
    store = open_store(folder / ".gpurun", notice=print)
    for one in records:
        store.add(one)


def measured(folder: Path, number: int, rate: float, **changes: object) -> BenchmarkRecord:
    """The record of main's commit of this number."""
    sha = git(folder, "rev-parse", f"main~{COMMITS - 1 - number}")
    launches = (replace(LAUNCH, samples_per_second=rate),) * 2
    given = {"commit": sha, "launches": launches, "samples_per_second": rate}
    return record(number, **{**given, **changes})


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_the_history_is_a_table_a_document_and_a_picture(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [1000.0, 1003.0, 998.0, 1001.0, 999.0, 1002.0, 800.0, 803.0, 801.0, 799.0, 802.0]
    keep(folder, *(measured(folder, i, rate) for i, rate in enumerate(rates)))
    keep(folder, measured(folder, 3, 5.0, id="planted", purpose=BenchmarkPurpose.SELFTEST))
    words = ["history", "vision", "--json", "h.json", "--png", "h.png", "--branch", "main"]
    assert main(["bench", *words]) == 0
    told = lines(capsys)
    assert told[0] == "throughput on main (higher is better)"
    assert "vision" in told[2]
    assert "▁" in told[2]
    assert told[3].startswith("gpurun: regression −20.")
    assert told[3].endswith("2026-11-01: change 6")
    assert told[-1] == "verdict=ok exit=0 trends=1 regressions=1 improvements=0"
    document = json.loads(Path("h.json").read_text())
    jsonschema.validate(document, all_schemas()["history@1.json"])
    found = from_json(History, document)
    assert (found.schema, found.branch) == (HISTORY_SCHEMA, "main")
    assert [point.value for point in found.trends[0].points] == pytest.approx(rates)
    with Image.open("h.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000


def test_dates_bound_what_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(folder, *(measured(folder, i, 1000.0) for i in range(8)))
    until = ["--until", "2026-11-01T15:30Z"]  # records are of 12:00 and each hour after
    assert main(["bench", "history", "--since", "2026-11-01T14:00Z", *until, "--json", "-"]) == 0
    found = from_json(History, json.loads(capsys.readouterr().out))
    assert [point.record for point in found.trends[0].points] == ["r0002", "r0003"]
    assert main(["bench", "history", "--until", "2026-10-01"]) == 4
    assert lines(capsys)[0] == "gpurun: no record lies between those dates"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "has no records yet"),
        (["history", "--branch", "gone"], "none of 1 record is of a commit of gone"),
        (["history", "visoin"], "there is no record of a benchmark 'visoin'"),
        (["history", "--metric", "energy"], "none of 1 record has a figure of energy"),
        (["accept", "--record", "r9"], "has no record r9"),
        (["accept"], "there is no record of HEAD"),
    ],
)
def test_where_there_is_no_record_one_line_says_so_with_exit_code_4(
    words: list[str], what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words:
        keep(folder, measured(folder, 0, 1000.0))
    assert main(["bench", *(words or ["history"])]) == 4
    told = lines(capsys)
    assert what in told[0]
    assert len(told) == 3
    assert told[-1] == "verdict=error exit=4"


@pytest.mark.parametrize(("flag", "file"), [("--json", ": /dev/full"), ("--png", "")])
def test_a_history_that_cannot_be_written_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], flag: str, file: str
) -> None:
    keep(folder, measured(folder, 0, 1000.0))
    assert main(["bench", "history", flag, "/dev/full"]) == 2
    told = lines(capsys)
    assert told[-3:] == [
        f"gpurun: {flag}{file} could not be written: No space left on device",
        "gpurun: name another file",
        "verdict=error exit=2",
    ]


def test_an_index_of_a_later_gpurun_is_refused_until_it_is_moved_away(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(folder, measured(folder, 0, 1000.0))
    index = folder / ".gpurun" / "bench.db"
    with closing(sqlite3.connect(index)) as connection:
        connection.execute("ALTER TABLE gpurun_benchmarks ADD COLUMN new")
    assert main(["bench", "history"]) == 2
    assert "is of another version of gpurun" in lines(capsys)[-3]
    index.rename(folder / "away.db")
    assert main(["bench", "history"]) == 0
    assert lines(capsys)[-1] == "verdict=ok exit=0 trends=1 regressions=0 improvements=0"


def test_accept_moves_the_baseline_and_the_history_shows_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = COMMITS - 1
    keep(folder, *(measured(folder, i, 1000.0) for i in range(last)))
    keep(
        folder,
        measured(folder, last, 900.0),
        measured(folder, last, 1.0, id="dirty", dirty=True),
        measured(folder, last, 1.0, id="crash", error="it crashed"),
    )
    assert main(["bench", "accept", "vision", "--reason", "float64 is worth it"]) == 0
    told = lines(capsys)
    assert "(900 samples/s on NVIDIA H200) by Ada <ada@example.org>" in told[0]
    assert told[-1] == "verdict=accepted exit=0 baselines=1"
    kept = open_store(folder / ".gpurun", notice=print).baselines("vision")
    assert [(one.record, one.branch, one.reason) for one in kept] == [
        (f"r{last:04}", "main", "float64 is worth it")
    ]
    head = commit(folder, {}, "one more")
    keep(folder, measured(folder, last, 900.0, id="r0099", commit=head))
    assert main(["bench", "history"]) == 0
    told = lines(capsys)
    assert f"±0.0 % against accepted {kept[0].commit[:9] if kept[0].commit else ''}" in told[2]
    assert any(line.endswith(": float64 is worth it") for line in told)


def test_each_workload_of_head_is_accepted_by_itself(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = COMMITS - 1
    keep(
        folder,
        measured(folder, last, 900.0, id="r1", args=("--size", "small")),
        measured(folder, last, 90.0, id="r2", args=("--size", "large")),
    )
    assert main(["bench", "accept"]) == 0
    told = lines(capsys)
    assert told[-1] == "verdict=accepted exit=0 baselines=2"
    assert told[0].startswith("gpurun: accepted vision --size small of ")
    assert told[1].startswith("gpurun: accepted vision --size large of ")


def test_what_no_commit_holds_is_not_accepted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(folder, measured(folder, COMMITS - 1, 1000.0, id="dirty", dirty=True))
    assert main(["bench", "accept"]) == 4
    assert "comes from a run with uncommitted changes" in lines(capsys)[0]
    assert main(["bench", "accept", "--record", "dirty"]) == 2
    assert "comes from a run with uncommitted changes" in lines(capsys)[0]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [({"status": INTERRUPTED}, "that was interrupted"), ({"error": "exit code 1"}, "that failed")],
)
def test_a_record_of_less_than_was_to_be_measured_is_not_accepted(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], fault: str
) -> None:
    keep(folder, measured(folder, COMMITS - 1, 1000.0, id="half", **changes))
    for words, code in (([], 4), (["--record", "half"], 2)):
        assert main(["bench", "accept", *words]) == code
        told = lines(capsys)
        assert told[0].endswith(f"comes from a run {fault}")
        assert told[-1] == f"verdict=error exit={code}"


def test_without_git_records_are_shown_and_one_can_be_accepted_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    keep(tmp_path, record(0, commit=None, branch=None, dirty=None))
    assert main(["bench", "history"]) == 0
    assert "1,000 samples/s" in lines(capsys)[2]
    assert main(["bench", "accept"]) == 2
    assert lines(capsys)[1] == "gpurun: name a record: --record ID"
    monkeypatch.setenv("LOGNAME", "grace")
    assert main(["bench", "accept", "--record", "r0000"]) == 0
    assert lines(capsys)[0].endswith("by grace")


def test_flags_stand_before_and_after_the_name() -> None:
    options = parse_history(["--metric", "peak-memory", "vision", "--quiet"])
    assert (options.name, options.metric, options.quiet) == ("vision", "peak_memory", True)
    with pytest.raises(GpurunError, match="takes one benchmark, not 'text' too"):
        parse_history(["vision", "text"])
    with pytest.raises(GpurunError, match="is no metric"):
        parse_history(["--metric", "speed"])
    with pytest.raises(GpurunError, match="--since is not before --until"):
        parse_history(["--since", "2026-11-02", "--until", "2026-11-01"])
    with pytest.raises(GpurunError, match="--record already names one record"):
        parse_accept(["vision", "--record", "r1"])


def test_the_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for word, options in (("history", HistoryOptions), ("accept", AcceptOptions)):
        assert main(["bench", word, "--help"]) == 0
        shown = capsys.readouterr().out
        assert [name for name in flags_of(options) if f"\n  --{name}" not in shown] == []
