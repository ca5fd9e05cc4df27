"""What a tuning measured, among the records of benchmarks: a tuning recorded on an H200."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.main_flags import parse
from gpurun.bench.record_of_launches import Version
from gpurun.bench.records_of_tuning import benchmark_of, keep_tuning, records_of, tuned_note
from gpurun.bench.store import open_store
from gpurun.commands.optimize import TuningOutcome, _enter
from gpurun.records.bench.benchmark import BenchmarkPurpose
from gpurun.records.codec import from_json
from gpurun.records.tuning import PAIR_SIDES, TuningReport
from tests.recordings import document, unpacked
from tests.repositories import commit, new_repository

TABLE = """
[[bench.benchmark]]
name = "vision"
script = "../simplenet.py"
args = ["--epochs", "1"]

[[bench.benchmark]]
name = "text"
script = "../text.py"
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("simplenet_tuning", tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def report(recorded: Path) -> TuningReport:
    return from_json(TuningReport, document(recorded / "tuning.json"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the script, its configuration in a folder below."""
    folder = new_repository(tmp_path / "project")
    commit(folder, {"simplenet.py": "", "text.py": "", "bench/gpurun.toml": TABLE})
    (folder / "home").mkdir()
    monkeypatch.chdir(folder / "bench")
    return folder


def test_the_pairs_of_the_proof_become_a_record_of_each_side(
    here: Path, recorded: Path, report: TuningReport
) -> None:
    benchmark = benchmark_of(load_config(here), parse(["simplenet.py"]).target, here)
    plain, tuned = records_of(report, benchmark, recorded, Version("a" * 40, "main", False))
    assert report.proof is not None
    assert report.chosen is not None
    assert report.baseline is not None
    pairs = list(report.proof.pairs)
    assert [launch.samples_per_second for launch in plain.launches] == [a for a, _ in pairs]
    assert sorted(x.samples_per_second or 0 for x in tuned.launches) == sorted(b for _, b in pairs)
    assert plain.samples_per_second == pytest.approx(report.baseline.samples_per_second)
    assert tuned.samples_per_second == pytest.approx(report.chosen.samples_per_second)
    assert report.chosen.knobs.items() <= tuned.fingerprint.settings.items()
    assert not report.chosen.knobs.keys() & plain.fingerprint.settings.keys()
    assert {x.purpose for x in (plain, tuned)} == {BenchmarkPurpose.OPTIMIZE}
    assert plain.parameters is not None, "else a trend has two rows for one script"
    assert plain.parameters == tuned.parameters
    assert tuned.device is not None
    assert "H200" in tuned.device
    assert (tuned.benchmark, tuned.script, tuned.branch) == ("simplenet", "simplenet.py", "main")


def test_without_a_proof_only_the_script_as_it_is_was_measured(
    here: Path, recorded: Path, report: TuningReport
) -> None:
    screened = tuple(trial for trial in report.trials if trial.purpose not in PAIR_SIDES)
    early = replace(report, trials=screened, chosen=report.baseline, verdict="no_gain")
    benchmark = benchmark_of(load_config(here), parse(["simplenet.py"]).target, here)
    (plain,) = records_of(early, benchmark, recorded, Version())
    assert len(plain.launches) == 1
    ended = replace(early, baseline=None, chosen=None)
    assert records_of(ended, benchmark, recorded, Version()) == ()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["../simplenet.py", "--epochs", "1"], "vision"),
        (["../simplenet.py"], "vision"),
        (["../text.py"], "text"),
        (["../other.py"], "other"),
        (["-m", "package.train"], "package.train"),
    ],
)
def test_it_has_the_name_that_the_configuration_gives_to_the_script(
    here: Path, words: list[str], name: str
) -> None:
    target = parse(words).target
    found = benchmark_of(load_config(Path.cwd()), target, Path.cwd())
    assert (found.name, found.args) == (name, target.args)


def test_a_later_comparison_knows_of_the_settings(
    here: Path, recorded: Path, report: TuningReport
) -> None:
    options = parse(["../simplenet.py"])
    store = open_store(here / "home", notice=print)
    benchmark = benchmark_of(load_config(Path.cwd()), options.target, Path.cwd())
    assert tuned_note(store, benchmark) is None

    keep_tuning(report, options, recorded, here / "home")
    store = open_store(here / "home", notice=print)
    note = tuned_note(store, benchmark)
    assert note is not None
    assert "--optimize found settings for ../simplenet.py" in note
    assert "both sides are measured without them" in note
    assert tuned_note(store, replace(benchmark, args=("--epochs", "2"))) is None


def test_records_that_cannot_be_written_cost_a_tuning_one_line(
    here: Path, recorded: Path, report: TuningReport, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "home" / "benchmarks").write_text("in the way")
    folder = here / "home" / "runs" / "1"
    folder.parent.mkdir()
    folder.symlink_to(recorded)
    tuned = TuningOutcome(report, folder, (), (), (), {}, None)
    _enter(tuned, parse(["../simplenet.py"]))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpurun: the tuning is not among the records of benchmarks: ")
    (Path.cwd() / "gpurun.toml").write_text("[bench\n")
    _enter(tuned, parse(["../simplenet.py"]))
    assert len(capsys.readouterr().err.splitlines()) == 1
