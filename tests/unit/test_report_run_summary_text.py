"""The summary after a plain run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.records.result import DeviceUse, HostUse, KnobOutcome, RunResult, StepSplit
from gpurun.report.run_summary_text import summary_lines
from gpurun.report.terminal_output import plain
from tests.unit.report_records import in_child, run_result, unmeasured_result

PRINT = """
import json, sys
from pathlib import Path
from gpurun.records.codec import from_json
from gpurun.records.result import RunResult
from gpurun.report.run_summary_text import print_summary
print_summary(from_json(RunResult, json.load(open(sys.argv[1]))), Path("runs/7"))
if "rich" in sys.modules:
    print("rich was imported")
"""


def text(result: RunResult) -> str:
    return "\n".join(plain(line) for line in summary_lines(result, Path("runs/7")))


def test_a_measured_run_tells_throughput_step_split_resources_and_record() -> None:
    shown = text(run_result(tokens_per_second=41800.0))
    for part in (
        "1,234 samples/s, 41,800 tokens/s",
        "step 25.9 ms (p50 25.1, p95 30.2, p99 41.0)",
        "epoch 48.6 s",
        "data wait 41 %  copy 3 %  forward 20 %  backward 25 %  optimizer 6 %  rest 5 %",
        "device memory 1.20 GiB (1.50 GiB reserved)",
        "GPU 43 % (SM activity)",
        "CPU 1.84 of 16 cores",
        "energy 12.3 kJ (173 mJ/sample, 5.78 samples/J)",
        "applied tf32",
        "record: runs/7",
    ):
        assert part in shown
    assert len(shown.splitlines()) <= 6


def test_arithmetic_memory_share_reading_and_saving_are_told_where_there_was_any() -> None:
    read = HostUse(184.0, 16.0, 1 << 30, 5, disk_read_bytes=3 << 30)
    whole = text(
        run_result(
            flops_per_step=2_040_000_000_000, flops_per_second=4.05e14, mfu=0.409,
            memory_share=0.83, host=read, checkpoint_saves=3, checkpoint_seconds=12.5,
        )
    )  # fmt: skip
    for part in (
        "(1.50 GiB reserved, 83 % of the device)",
        "2.04 TFLOP a step (405 TFLOP/s, MFU 40.9 %)",
        "read from disk 3.00 GiB",
        "12.5 s in 3 saves (torch.save)",
    ):
        assert part in whole
    on_cpu = text(
        run_result(
            devices=(), flops_per_step=5_000_000, flops_per_second=2e9, memory_share=0.06,
            host=HostUse(184.0, 16.0, 1 << 30, 5, disk_read_bytes=4096),
            checkpoint_saves=0, checkpoint_seconds=0.0,
        )
    )  # fmt: skip
    assert "5.00 MFLOP a step (2.00 GFLOP/s)" in on_cpu
    assert "host memory 1.00 GiB (6 % of the machine's)" in on_cpu
    assert not any(word in on_cpu for word in ("MFU", "read from disk", "torch.save"))


def test_no_training_is_told_in_one_line_beside_the_record() -> None:
    lines = text(unmeasured_result(notes=("no training was seen",))).splitlines()
    assert lines == [
        "gpurun: no training was seen; the script ended after 52.1 s",
        "gpurun: record: runs/7",
    ]


def test_what_was_not_measured_is_left_out_and_never_zero() -> None:
    device = DeviceUse("GPU", *(None,) * 13, (), None, 1.0)
    part = StepSplit(10.0, None, None, None, None, 5.0)
    shown = text(unmeasured_result(clock="optimizer", steps=3, devices=(device,), split=part))
    assert "3 steps seen, too few to measure" in shown
    assert "None" not in shown
    assert " 0 " not in shown
    partly = text(run_result(split=part, host=None, energy_joules=None, epoch_seconds=None))
    assert "data wait 67 %  rest 33 %" in partly
    for absent in ("forward", "copy", "CPU", "energy", "epoch", "None"):
        assert absent not in partly


def test_a_forward_only_script_is_told_its_latency() -> None:
    assert "latency 25.9 ms" in text(run_result(clock="forward"))


def test_knobs_that_did_not_apply_and_broken_hooks_are_told_with_their_reason() -> None:
    knobs = (KnobOutcome("bf16", "skipped", "the script\nautocasts"),)
    shown = text(run_result(knobs=knobs, hook_errors=("loaders: TypeError: [x]",)))
    assert "skipped bf16 (the script autocasts)" in shown
    assert "hook switched off: loaders: TypeError: [x]" in shown


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [("failed", 7, "failed with exit code 7"), ("killed", None, "the script killed")],
)
def test_a_bad_end_is_told(status: str, code: int | None, words: str) -> None:
    assert words in text(run_result(status=status, exit_code=code))


def test_without_a_terminal_the_summary_is_plain_lines_on_stderr_without_rich(
    tmp_path: Path,
) -> None:
    stdout, stderr = in_child(PRINT, tmp_path, run_result())
    assert stdout == ""
    assert "\x1b" not in stderr
    assert all(line.startswith("gpurun: ") for line in stderr.splitlines())


def test_an_ascii_stderr_gets_ascii(tmp_path: Path) -> None:
    result = run_result(notes=("a → b",))
    _, stderr = in_child(PRINT, tmp_path, result, PYTHONIOENCODING="ascii")
    assert "note: a -> b" in stderr
    assert "\\u" not in stderr


def test_a_terminal_gets_colours_and_no_color_takes_them_away(tmp_path: Path) -> None:
    stdout, coloured = in_child(PRINT, tmp_path, run_result(), columns=110)
    _, bare = in_child(PRINT, tmp_path, run_result(), columns=110, NO_COLOR="1")
    assert "\x1b[" in coloured
    assert "\x1b" not in bare
    assert "rich" in stdout  # the terminal does draw with it
    assert "data wait 41 %" in bare


def test_a_narrow_terminal_wraps_between_words_with_an_indent(tmp_path: Path) -> None:
    _, shown = in_child(PRINT, tmp_path, run_result(), columns=60, NO_COLOR="1")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 60
    assert all(line.startswith(("gpurun: ", "        ")) for line in lines)


def test_a_stderr_that_is_closed_does_not_fail_the_run(tmp_path: Path) -> None:
    code = f"import sys\nsys.stderr.close()\n{PRINT}\nprint('went on')"
    stdout, _ = in_child(code, tmp_path, run_result())
    assert stdout == "went on\n"
