"""`--on-oom`: the one answer that is sound, and the reason why the others are refused."""

from __future__ import annotations

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.errors import GpurunError


def test_stop_is_what_happens_without_the_flag() -> None:
    assert parse(["--on-oom", "stop", "train.py"]) == parse(["train.py"])


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("skip", "leaves the script's own loop"),
        ("shrink", "still hold the old batch size"),
        ("restart", "cannot prove that the script has written nothing"),
    ],
)
def test_what_cannot_be_done_soundly_is_refused_with_the_way_out(action: str, why: str) -> None:
    with pytest.raises(GpurunError) as refused:
        parse(["--on-oom", action, "train.py"])
    assert refused.value.what.startswith(f"--on-oom {action} is refused: ")
    assert why in refused.value.what
    assert "gpurun --optimize" in refused.value.todo


def test_an_unknown_action_is_named() -> None:
    with pytest.raises(GpurunError, match="--on-oom 'pray' is not known"):
        parse(["--on-oom", "pray", "train.py"])


def test_what_is_for_a_full_run_is_not_for_scale() -> None:
    for flag in (
        ["--on-nonfinite", "stop"],
        ["--locate-nonfinite"],
        ["--emergency-checkpoint"],
        ["--on-oom", "stop"],
    ):
        with pytest.raises(GpurunError, match="is not for --scale"):
            parse(["--scale", "1,2", *flag, "train.py"])
