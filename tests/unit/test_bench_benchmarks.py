"""Benchmarks of the configuration: what each says, else what `[bench]` says, else the default."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.arguments.gpurun_toml import load_config
from gpurun.bench.benchmarks import Benchmark, benchmarks, named
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import Metric


def configured(folder: Path, text: str) -> tuple[Benchmark, ...]:
    (folder / "gpurun.toml").write_text(text)
    return benchmarks(load_config(folder))


def test_a_script_alone_is_a_benchmark_held_to_throughput_and_memory(tmp_path: Path) -> None:
    (one,) = configured(tmp_path, '[bench]\nscript = "train/vision.py"\n')
    assert (one.name, one.script, one.folder) == ("vision", "train/vision.py", tmp_path)
    assert one.metrics == (Metric.THROUGHPUT, Metric.PEAK_MEMORY)
    assert one.thresholds == {Metric.THROUGHPUT: 0.05, Metric.PEAK_MEMORY: 0.01}
    assert (one.args, one.steps, one.setup, one.env, one.needed) == ((), None, None, {}, ())


def test_each_benchmark_adds_to_what_holds_for_all(tmp_path: Path) -> None:
    small, large = configured(
        tmp_path,
        '[bench]\nscript = "train.py"\nargs = ["--small"]\nsteps = 50\nsetup = "make"\n'
        'metrics = ["throughput"]\nenv = { A = "1", B = "1" }\nthresholds = { throughput = "3%" }\n'
        '[[bench.benchmark]]\nname = "small"\n'
        '[[bench.benchmark]]\nname = "large"\nargs = []\nsteps = 9\nenv = { B = "2" }\n'
        'metrics = ["peak_memory", "throughput"]\n',
    )
    assert (small.args, small.steps, small.metrics) == (("--small",), 50, (Metric.THROUGHPUT,))
    assert (large.args, large.steps, large.setup) == ((), 9, "make")
    assert large.env == {"A": "1", "B": "2"}
    assert large.thresholds == {Metric.PEAK_MEMORY: 0.01, Metric.THROUGHPUT: 0.03}


def test_a_script_named_in_a_folder_below_starts_there_and_is_set_up_above(tmp_path: Path) -> None:
    (tmp_path / "gpurun.toml").write_text('[bench]\nsetup = "make"\nneeded = ["data/*"]\n')
    below = tmp_path / "scripts"
    below.mkdir()
    one = named(load_config(below), "train.py", (), below)
    assert (one.folder, one.script, one.base) == (below, "train.py", tmp_path)
    assert (one.setup, one.needed) == ("make", ("data/*",))
    assert named(load_config(tmp_path), "train.py", (), tmp_path).base is None


def test_without_a_section_there_is_no_benchmark(tmp_path: Path) -> None:
    assert configured(tmp_path, "[run]\nquiet = true\n") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[bench]\nsteps = 5\n", r"\[bench\] names no script"),
        ('[[bench.benchmark]]\nname = "a"\n', r"\[\[bench.benchmark\]\] a names no script"),
        (
            '[bench]\nscript = "t.py"\n[[bench.benchmark]]\nargs = []\n[[bench.benchmark]]\n',
            "two benchmarks are named 't'",
        ),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(GpurunError, match=says) as caught:
        configured(tmp_path, text)
    assert caught.value.todo
