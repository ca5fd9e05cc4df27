"""The flags of `gpurun bench`, and what is refused before anything is launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun import main
from gpurun.arguments.bench_flags import BenchOptions, parse_bench
from gpurun.arguments.flag_table import flags_of
from gpurun.errors import GpurunError
from tests.repositories import commit, new_repository


def test_everything_after_the_script_is_the_scripts() -> None:
    options = parse_bench(["--compare", "main", "train.py", "--threshold", "5%"])
    assert (options.compare, options.script) == ("main", "train.py")
    assert options.args == ("--threshold", "5%")
    assert options.threshold is None


def test_metrics_may_have_thresholds_of_their_own() -> None:
    options = parse_bench(
        ["--compare=main", "--metrics", "throughput, peak-memory=2%", "--threshold", "0.03"]
    )
    assert options.metrics == (("throughput", None), ("peak_memory", 0.02))
    assert options.threshold == 0.03


def test_figures_may_be_exported_to_several_trackers() -> None:
    words = ["--export", "bencher=a=b.json", "--export=customSmallerIsBetter=c.json", "train.py"]
    assert parse_bench(words).exports == (
        ("bencher", "a=b.json"),
        ("customSmallerIsBetter", "c.json"),
    )


@pytest.mark.parametrize("words", [["--ab", "a.toml", "none"], ["--ab=a.toml", "none"]])
def test_two_settings_stand_before_the_script(words: list[str]) -> None:
    options = parse_bench([*words, "--allow", "training", "train.py", "none"])
    assert (options.ab, options.allow) == (("a.toml", "none"), ("training",))
    assert (options.script, options.args) == ("train.py", ("none",))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--threshold", "5%"], "--threshold needs --compare, --ab or --results"),
        (["--compare", "main", "--threshold", "0"], "--threshold: '0' is not a fraction"),
        (["--compare", "main", "--metrics", "speed"], "--metrics: 'speed' is no metric"),
        (["--compare", "main", "--metrics", "gpu_utilization"], "--metrics: 'gpu_util"),
        (["--compare", "main", "--metrics", ","], "--metrics names none"),
        (["--compare", "main", "--launches", "3"], "--launches is not for --compare"),
        (["--export", "bencher"], "--export 'bencher' does not name a tracker and a file"),
        (["--export", "codspeed=a.json"], "--export 'codspeed=a.json' does not name a tracker"),
        (["--launches", "0"], "--launches '0' is not a count"),
        (["--optimize"], "unknown flag --optimize"),
        (["-m", "train"], "unknown flag -m"),
        (["--compare"], "--compare needs a value"),
        (["--ab", "a.toml"], "--ab needs two values"),
        (["--ab", "a.toml", "none", "--compare", "main"], "--compare is for two commits"),
        (["--ab", "a.toml", "none", "--launches", "3"], "--launches is not for --ab"),
        (["--ab", "a.toml", "none", "--allow", "all"], "--allow 'all' is not a list of effects"),
        (["--allow", "training"], "--allow needs --ab"),
    ],
)
def test_a_wrong_flag_is_an_error_with_a_cure(words: list[str], what: str) -> None:
    with pytest.raises(GpurunError) as raised:
        parse_bench(words)
    assert raised.value.what.startswith(what)
    assert raised.value.todo


def test_the_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in flags_of(BenchOptions) if f"\n  --{name}" not in shown] == []


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "there is no benchmark"),
        (["missing.py"], "there is no script"),
        (["--compare", "main", "--max-pairs", "1", "train.py"], "--max-pairs 1 ends before"),
        (["--compare", "mian", "train.py"], "has no branch, tag or commit 'mian'"),
        (["--json", "no/where.json", "train.py"], "--json: there is no folder"),
        (["--export", "bencher=no/where.json", "train.py"], "--export: there is no folder"),
    ],
)
def test_what_cannot_work_is_refused_before_a_launch(
    words: list[str],
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = new_repository(tmp_path / "project")
    commit(folder, {"train.py": ""})
    monkeypatch.chdir(folder)
    assert main(["bench", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert what in lines[0]
    assert lines[-1] == "verdict=error exit=2"


def test_a_first_commit_has_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = new_repository(tmp_path / "project")
    commit(folder, {"train.py": ""})
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert main(["bench", "--compare", "main", "--json", "found.json", "train.py"]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("gpurun: FAILED train: HEAD is the first commit")
    assert lines[-1] == "verdict=failed exit=4 pairs=0"
    assert '"regression_detected": false' in Path("found.json").read_text()
