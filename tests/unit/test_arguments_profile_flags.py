"""The flags of `gpurun profile`: what reaches the recorders."""

from __future__ import annotations

import pytest

from gpurun.arguments.subcommand_flags import parse_profile
from gpurun.commands.profile import _spec
from gpurun.errors import GpurunError

WITH_NCU = ["--sources", "steps,kineto,ncu"]


def test_nsight_compute_gets_kernels_launches_and_a_set_of_sections() -> None:
    asked = parse_profile(
        [*WITH_NCU, "--kernel", "gemm|nvjet", "--launch-count", "5", "--set", "full", "train.py"]
    )
    spec = _spec(asked, ())
    assert (spec.kernel, spec.launch_count, spec.set) == ("gemm|nvjet", 5, "full")
    plain = _spec(parse_profile(["train.py"]), ())
    assert (plain.kernel, plain.launch_count, plain.set) == (None, 2, None)


@pytest.mark.parametrize("flag", [["--kernel", "x"], ["--launch-count", "2"], ["--set", "full"]])
def test_flags_of_nsight_compute_need_it(flag: list[str]) -> None:
    with pytest.raises(GpurunError, match="is for Nsight Compute"):
        parse_profile([*flag, "train.py"])


def test_a_window_lasts_as_long_as_was_asked_for() -> None:
    spec = _spec(parse_profile(["--duration", "1m30s", "train.py"]), ())
    assert spec.min_seconds == 90
    assert spec.max_steps == 180_000
    assert _spec(parse_profile(["--duration", "0.5", "train.py"]), ()).max_steps == 2000
    both = _spec(parse_profile(["--duration", "5s", "--steps", "7", "train.py"]), ())
    assert (both.steps, both.max_steps) == (7, 7), "steps that are counted end the window"


def test_what_is_no_duration_is_refused_by_its_flag() -> None:
    with pytest.raises(GpurunError, match="--duration: 'soon' is not a duration"):
        parse_profile(["--duration", "soon", "train.py"])
