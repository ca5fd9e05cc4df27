"""Valid inputs of every kind that a command reads, for `scripts/malformed_inputs.py`."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.arguments import settings_file
from gpurun.arguments.bench_subcommand_flags import parse_history
from gpurun.arguments.main_flags import parse
from gpurun.bench.history.branch_records import branch_here
from gpurun.bench.store import open_store
from gpurun.commands.bench.history_command import read_history
from gpurun.commands.saved_settings import settings_path
from gpurun.launch.launch_command import write_spec
from gpurun.measure.fingerprint import command_fingerprint
from gpurun.records.bench.benchmark import BenchmarkExport, BenchmarkLaunch
from gpurun.records.codec import to_json
from gpurun.records.failure import Attempt, RankFailure
from gpurun.records.spec import RunSpec
from gpurun.records.tuning import SavedSettings
from gpurun.rundir import write_json
from tests.unit.benchmark_records import record
from tests.unit.test_report_page import scaled

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
KEPT_EVENTS = 400
"""Of a trace: a whole one has a hundred thousand events."""
KEPT_SAMPLES = 30
SCRIPT = "import sys\nprint('trained', sys.argv[1:])\n"
CONFIGURATION = """\
knobs = ["own_knob.py"]

[run]
quiet = false
out = ".gpurun"
loss_reduction = "mean"

[optimize]
budget = "5m"
allow = ["pipeline", "numerics"]
max_trials = 7
objective = "throughput"
patience = 90

[bench]
script = "train.py"
args = ["--epochs", "1"]
steps = 20
env = { OMP_NUM_THREADS = "1" }
metrics = ["throughput", "peak_memory"]
thresholds = { throughput = "5%" }

[report]
price_per_hour = 2.5
currency = "EUR"
grams_co2_per_kwh = 400.0

[diagnose]
memory_used = [0.8, 0.95]
"""


@dataclass(frozen=True)
class ValidInput:
    """A folder in which a command reads one file.

    `target`: that file, relative to the folder. `live`: it is still being written, and a view of it
    passes over what is no whole line.
    """

    kind: str
    folder: Path
    target: str
    command: tuple[str, ...]
    live: bool = False


def valid_inputs(root: Path, case: Path) -> list[ValidInput]:
    """Make all of them below `root`; `case`: where commands will find a copy, not there yet."""
    return [
        *_configurations(root / "configuration"),
        *_settings(root / "settings", case),
        *_documents(root / "documents"),
        *_store(root / "store"),
        *_recordings(root / "recordings"),
        *_runs(root / "runs"),
    ]


def _configurations(folder: Path) -> Iterator[ValidInput]:
    for name, prefix in (("gpurun.toml", ""), ("pyproject.toml", "tool.gpurun.")):
        place = _fresh(folder / prefix.rstrip("."))
        text = CONFIGURATION.replace("\n[", f"\n[{prefix}")
        (place / name).write_text(f"[{prefix.rstrip('.')}]\n{text}" if prefix else text)
        (place / "own_knob.py").write_text("")
        (place / "train.py").write_text(SCRIPT)
        run = _run_folder(place / "run")
        yield ValidInput("configuration", place, name, ("diagnose", run))
        yield ValidInput("configuration", place, name, ("train.py",))


def _settings(place: Path, case: Path) -> Iterator[ValidInput]:
    """Settings are found again by the path of their script, so they are made in `case`."""
    _fresh(case)
    _write_settings(case)
    shutil.move(case, place)
    for name in ("settings.json", "settings.toml"):
        yield ValidInput("settings", place, name, ("--settings", name, "train.py"))
    (cached,) = (place / ".gpurun" / "tuned").glob("*.json")
    name = str(cached.relative_to(place))
    yield ValidInput("tuned settings", place, name, ("--tuned", "train.py"))


def _write_settings(place: Path) -> None:
    (place / "train.py").write_text(SCRIPT)
    with _inside(place):
        options = parse(["train.py"])
        settings: dict[str, object] = {"loader_workers": 4, "tf32": True, "autocast": "bfloat16"}
        fingerprint = command_fingerprint(options.typed, options.rank_words, options.knob_paths)
        saved = SavedSettings(settings, ("a",), 2.0, fingerprint, (options.target.path,))
        cached = settings_path(place / ".gpurun", options)
        settings_file.save(cached, saved)
    shutil.copy(cached, place / "settings.json")
    (place / "settings.toml").write_text("[settings]\nloader_workers = 4\ntf32 = true\n")


def _documents(folder: Path) -> Iterator[ValidInput]:
    place = _fresh(folder)
    with tarfile.open(DATA / "h200" / "simplenet_tuning.tar.xz") as archive:
        member = archive.extractfile("simplenet_tuning/tuning.json")
        assert member is not None
        (place / "tuning.json").write_bytes(member.read())
    shutil.copy(DATA / "h200" / "comparison_planted.json", place / "comparison.json")
    shutil.copy(DATA / "h200_slow_vision" / "as_written" / "result.json", place)
    write_json(place / "scaling.json", to_json(scaled()))
    write_json(place / "history.json", to_json(_history(folder / "history")))
    for name in ("tuning", "comparison", "result", "scaling", "history"):
        command = ("report", f"{name}.json", "--markdown", "page.md")
        yield ValidInput(f"{name} document", place, f"{name}.json", command)


def _history(folder: Path) -> object:
    store = open_store(_fresh(folder), notice=print)
    for number in range(6):
        store.add(record(number))
    options = parse_history(["--branch", "main"])
    with _inside(folder):
        return read_history(store, options, branch_here(folder, "main"))


def _store(folder: Path) -> Iterator[ValidInput]:
    place = _fresh(folder)
    store = open_store(place / ".gpurun", notice=print)
    records = [record(number, launches=_launches(number)) for number in range(8)]
    for one in records:
        store.add(one)
    export = BenchmarkExport(tuple(records), (store.accept("r0002", "ada", "faster reader"),))
    write_json(place / "export.json", to_json(export))
    write_json(place / "record.json", to_json(replace(records[-1], id="r0100")))
    judge = ("bench", "--results", "record.json", "--baseline", "export.json")
    yield ValidInput("record", place, "record.json", judge)
    yield ValidInput("baseline", place, "export.json", judge)
    history = ("bench", "history", "--branch", "main")
    yield ValidInput("store", place, ".gpurun/bench.db", history)
    kept = ".gpurun/benchmarks/r0003.json"
    fresh = _fresh(folder.with_name("store-files"))
    shutil.copytree(place / ".gpurun" / "benchmarks", fresh / ".gpurun" / "benchmarks")
    yield ValidInput("store's file", fresh, kept, history)


def _launches(number: int) -> tuple[BenchmarkLaunch, ...]:
    made = record().launches[0]
    rates = (1000.0 + number + i for i in range(3))
    return tuple(replace(made, samples_per_second=rate) for rate in rates)


def _recordings(folder: Path) -> Iterator[ValidInput]:
    place = _fresh(folder)
    (place / "kineto.json").write_text(json.dumps(_small_trace()))
    yield ValidInput("Kineto trace", place, "kineto.json", ("diagnose", "kineto.json"))
    for source in sorted((DATA / "profiles").iterdir()):
        shutil.copy(source, place)
        command = ("diagnose", source.name)
        if source.suffix == ".sqlite":
            _shrink(place / source.name)
            yield ValidInput("nsys database", place, source.name, command)
        elif "_raw_" in source.name:
            yield ValidInput("ncu page", place, source.name, command)


def _small_trace() -> dict[str, object]:
    with tarfile.open(DATA / "h100_profiles" / "tiny_kernels.tar.xz") as archive:
        (name,) = [name for name in archive.getnames() if "/kineto-" in name]
        member = archive.extractfile(name)
        assert member is not None
        document: dict[str, object] = json.loads(member.read())
    events = document["traceEvents"]
    assert isinstance(events, list)
    document["traceEvents"] = events[:KEPT_EVENTS]
    return document


def _shrink(path: Path) -> None:
    """Bring a database into few pages, so that damage hits something that is read."""
    database = sqlite3.connect(path)
    database.execute("VACUUM")
    database.close()


def _runs(folder: Path) -> Iterator[ValidInput]:
    place = _fresh(folder)
    run = _run_folder(place / "run")
    names = sorted(str(path.relative_to(place)) for path in (place / "run").rglob("*.json*"))
    for name in names:
        kind = f"run's {Path(name).name.partition('-')[0].partition('.')[0]}"
        yield ValidInput(kind, place, name, ("diagnose", run))
        yield ValidInput(kind, place, name, ("report", run, "--markdown", "page.md"))
    live = _fresh(folder.with_name("monitored"))
    shutil.copytree(place / "run", live / ".gpurun" / "runs" / "20260101-000000-abcdef")
    inside = live / ".gpurun" / "runs" / "20260101-000000-abcdef"
    (inside / "result.json").unlink()
    write_spec(RunSpec(str(inside), os.getpid()))
    events = next(inside.glob("events-*.jsonl")).relative_to(live)
    yield ValidInput("monitored events", live, str(events), ("monitor", "--once"), live=True)


def _run_folder(place: Path) -> str:
    """A profiled run of few steps, with ranks' attempts; its name relative to the folder above."""
    _fresh(place)
    with tarfile.open(DATA / "h100_profiles" / "tiny_kernels.tar.xz") as archive:
        for member in archive.getmembers():
            target = place / Path(member.name).relative_to("tiny_kernels")
            source = archive.extractfile(member)
            if source is not None and "profile" not in target.parts:
                target.write_bytes(_shortened(source.read(), target))
    failure = RankFailure(0, 0, 690, 1, None, "ValueError: no such file", 1, None)
    attempt = Attempt(1, 1, 2.5, "failed", (failure,))
    (place / "attempts.jsonl").write_text(json.dumps(to_json(attempt)) + "\n")
    (place / "profile").mkdir()
    process = next(place.glob("events-*.jsonl")).stem.partition("-")[2]
    (place / "profile" / f"kineto-{process}.json").write_text(json.dumps(_small_trace()))
    return place.name


def _shortened(content: bytes, target: Path) -> bytes:
    if target.name != "samples.jsonl":
        return content
    return b"".join(content.splitlines(keepends=True)[:KEPT_SAMPLES])


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _fresh(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
