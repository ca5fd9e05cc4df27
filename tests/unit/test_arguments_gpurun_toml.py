"""Configuration: found where people put it, and an error in it names file, place and cure."""

from __future__ import annotations

import os
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpurun.arguments import gpurun_toml
from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.flag_values import parse_duration, parse_fraction
from gpurun.arguments.gpurun_toml import (
    BenchConfig,
    Config,
    ReportConfig,
    load_config,
)
from gpurun.arguments.options import Options
from gpurun.arguments.trusted_files import read_with_status
from gpurun.errors import GpurunError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def error_in(folder: Path, text: str, name: str = "gpurun.toml") -> GpurunError:
    write(folder / name, text)
    with pytest.raises(GpurunError) as caught:
        load_config(folder)
    return caught.value


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    config = load_config(tmp_path)
    assert config == Config()
    assert config.allowed == ("pipeline", "numerics")


def test_every_key_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "gpurun.toml",
        'knobs = ["mine/knob.py"]\n'
        '[optimize]\nbudget = "1m30s"\nallow = ["pipeline"]\nmax_trials = 7\n'
        '[run]\nout = "records"\nquiet = true\n',
    )
    config = load_config(tmp_path)
    assert config.flags == {
        "budget_seconds": 90,
        "allow": ("pipeline",),
        "max_trials": 7,
        "out": str(tmp_path / "records"),
        "quiet": True,
    }
    assert config.knobs == (str(tmp_path / "mine/knob.py"),)
    assert config.source == path


def test_the_nearest_file_upward_wins(tmp_path: Path) -> None:
    write(tmp_path / "gpurun.toml", "[optimize]\nmax_trials = 1\n")
    write(tmp_path / "a" / "gpurun.toml", "[optimize]\nmax_trials = 2\n")
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    assert load_config(deep).flags["max_trials"] == 2
    assert load_config(tmp_path).flags["max_trials"] == 1


def test_pyproject_counts_and_gpurun_toml_beside_it_wins(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "[tool.gpurun.optimize]\nmax_trials = 3\n")
    assert load_config(tmp_path).flags["max_trials"] == 3
    write(tmp_path / "gpurun.toml", "[optimize]\nmax_trials = 4\n")
    assert load_config(tmp_path).flags["max_trials"] == 4


def test_a_pyproject_without_our_table_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "gpurun.toml", "[optimize]\nmax_trials = 5\n")
    write(tmp_path / "lib" / "pyproject.toml", '[project]\nname = "x"\n')
    assert load_config(tmp_path / "lib").flags["max_trials"] == 5


def test_a_broken_pyproject_that_never_names_us_stops_nobody(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", "[project\n")
    assert load_config(tmp_path) == Config()


def test_malformed_toml_names_file_and_line(tmp_path: Path) -> None:
    error = error_in(tmp_path, "[optimize]\nbudget = = 5\n")
    assert str(tmp_path / "gpurun.toml") in error.what
    assert "line 2" in error.what
    assert error.todo


def test_toml_that_ends_too_early_names_its_last_line(tmp_path: Path) -> None:
    assert "line 3" in error_in(tmp_path, "[optimize]\nallow = [\n").what


@pytest.mark.parametrize(
    ("text", "unknown", "near"),
    [
        ("[optimise]\n", "optimise", "optimize"),
        ("[optimize]\nbuget = 5\n", "optimize.buget", "budget"),
        ("[run]\nquite = true\n", "run.quite", "quiet"),
        ('[optimize]\nallow = ["numeric"]\n', "numeric", "numerics"),
        ("[bench]\nscirpt = 3\n", "bench.scirpt", "script"),
        ("[[bench.benchmark]]\nstps = 3\n", "bench.benchmark[0].stps", "steps"),
        ('[bench]\nmetrics = ["memory"]\n', "memory", "peak_memory"),
        ("[bench.thresholds]\ntroughput = 0.1\n", "bench.thresholds.troughput", "throughput"),
    ],
)
def test_an_unknown_word_suggests_the_near_one(
    tmp_path: Path, text: str, unknown: str, near: str
) -> None:
    error = error_in(tmp_path, text)
    assert repr(unknown) in error.what
    assert f"Did you mean {near!r}" in error.todo


def test_an_unknown_key_in_pyproject_is_named_with_its_table(tmp_path: Path) -> None:
    error = error_in(tmp_path, "[tool.gpurun.run]\nquite = true\n", "pyproject.toml")
    assert "'tool.gpurun.run.quite'" in error.what


def test_the_file_cannot_set_where_it_was_found(tmp_path: Path) -> None:
    assert "'source'" in error_in(tmp_path, 'source = "elsewhere"\n').what


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[optimize]\nmax_trials = 1.5\n", "optimize.max_trials"),
        ("[optimize]\nbudget = true\n", "optimize.budget"),
        ("[optimize]\nbudget = -3\n", "optimize.budget"),
        ('[optimize]\nbudget = "soon"\n', "optimize.budget"),
        ('[optimize]\nallow = "pipeline"\n', "optimize.allow"),
        ("optimize = 3\n", "optimize"),
        ('[run]\nquiet = "yes"\n', "run.quiet"),
        ("knobs = [3]\n", "knobs[0]"),
        ("[bench]\nsteps = 0\n", "bench.steps"),
        ("[bench.env]\nDEBUG = 1\n", "bench.env.DEBUG"),
        ("[bench.thresholds]\nthroughput = 5\n", "bench.thresholds.throughput"),
        ('[bench.thresholds]\npeak_memory = "big"\n', "bench.thresholds.peak_memory"),
        ("[bench.benchmark]\nsteps = 3\n", "bench.benchmark"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(tmp_path: Path, text: str, key: str) -> None:
    error = error_in(tmp_path, text)
    assert f" {key}:" in error.what
    assert "\n" not in error.what
    assert error.todo


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("[optimize]\nmax_trials = 1.5\n", "optimize.max_trials takes a whole number."),
        ("[optimize]\nbudget = true\n", 'optimize.budget takes a duration, as in 90 or "5m".'),
        (
            '[optimize]\nallow = "pipeline"\n',
            "optimize.allow takes a list of pipeline, numerics, training.",
        ),
        ('[run]\nquiet = "yes"\n', "run.quiet takes true or false."),
        ("[run]\nout = 3\n", "run.out takes a text."),
        ("knobs = [3]\n", "knobs takes a list of texts."),
        ("optimize = 3\n", "optimize takes a table of keys and values."),
        ("[bench]\nneeded = 3\n", "bench.needed takes a list of texts."),
        (
            "[bench]\nmetrics = 3\n",
            "bench.metrics takes a list of throughput, step_time, peak_memory, energy.",
        ),
        ("[bench.benchmark]\n", "bench.benchmark takes tables, each headed [[bench.benchmark]]."),
    ],
)
def test_the_type_that_a_key_takes_is_said(tmp_path: Path, text: str, takes: str) -> None:
    assert error_in(tmp_path, text).todo == takes


def test_our_table_must_be_a_table(tmp_path: Path) -> None:
    assert "tool.gpurun" in error_in(tmp_path, "[tool]\ngpurun = 3\n", "pyproject.toml").what


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpurun.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GpurunError, match=r"gpurun\.toml cannot be read"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("1h 30m", 5400), ("500ms", 0.5)],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 minutes", "-5m", "0", "0s", "5mm", "1e3", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(GpurunError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "fraction"), [("5%", 0.05), ("0.5 %", 0.005), (".1", 0.1)])
def test_fractions_as_people_write_them(text: str, fraction: float) -> None:
    assert parse_fraction(text) == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["", "5", "0%", "100%", "-5%", "five"])
def test_what_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(GpurunError, match="is not a fraction"):
        parse_fraction(text)


def test_the_file_in_the_repository_shows_every_key_with_its_default() -> None:
    path = Path(__file__).resolve().parents[2] / "gpurun.toml"
    shown, known = load_config(path.parent), flags_of(Options).values()
    assert replace(shown, source=None, flags={}, optimize={}, run={}) == Config()
    keys = [field.name for table in (Config, BenchConfig, ReportConfig) for field in fields(table)]
    keys += [one.key.partition(".")[2] for one in known if one.key]
    tables = ("source", "flags", "run", "optimize", "bench", "diagnose", "report")
    missing = [key for key in keys if not re.search(rf"^(# )?{key} = ", path.read_text(), re.M)]
    assert [key for key in missing if key not in tables] == []
    defaults = {
        one.option: one.read(one.name, one.default) for one in known if one.read and one.default
    }
    assert shown.flags == {name: defaults.get(name, False) for name in shown.flags}


def test_a_price_is_a_number_above_zero(tmp_path: Path) -> None:
    write(tmp_path / "gpurun.toml", '[report]\nprice_per_hour = 3\ncurrency = "€"\n')
    assert load_config(tmp_path).report == ReportConfig(price_per_hour=3.0, currency="€")
    for price in ("0", "nan", "inf"):
        assert "above 0" in error_in(tmp_path, f"[report]\nprice_per_hour = {price}\n").what
    assert "grams_co2_per_kwh" in error_in(tmp_path, "[report]\ngrams_co2 = 300\n").todo


def test_a_file_that_is_taken_away_while_it_is_read_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_lose(path: Path) -> tuple[bytes, os.stat_result]:
        found = read_with_status(path)
        path.unlink()
        return found

    monkeypatch.setattr(gpurun_toml, "read_with_status", read_and_lose)
    error = error_in(tmp_path, '[run]\nout = "elsewhere"\n')
    assert "somebody changes it right now" in error.what


def test_the_owner_is_that_of_the_very_file_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_a_strangers(path: Path) -> tuple[bytes, os.stat_result]:
        content, status = read_with_status(path)
        return content, os.stat_result((*status[:4], 12345, *status[5:]))

    monkeypatch.setattr(gpurun_toml, "read_with_status", read_a_strangers)
    assert "belongs to uid 12345" in error_in(tmp_path, "knobs = []\n[run]\nquiet = true\n").what
