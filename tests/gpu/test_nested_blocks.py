"""Blocks that are compiled once, on a GPU: in CUDA graphs, and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import bare, run_under
from tests.integration.test_nested_blocks import ATTENTION, BEGIN, END, MASKS, MODEL, NET

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("mode", ["reduce-overhead", "default"]),
]
ON_GPU = BEGIN + 'torch.set_default_device("cuda")\n'


def once(mode: str) -> tuple[str, str, str]:
    return ("compile", "applied", f"Net: {mode}, 6 × Block compiled once")


def test_losses_and_weights_are_those_of_the_script(
    tmp_path: Path, gpurun: Gpurun, mode: str
) -> None:
    script = ON_GPU + NET + MODEL + END
    run, alone = run_under(gpurun, tmp_path, script, {"compile": mode}), bare(tmp_path, script)
    assert run.knobs == [once(mode)]
    for figures in ("losses", "state"):
        assert run.printed[figures] == pytest.approx(alone[figures], rel=1e-3)


def test_each_block_and_step_draws_its_own_mask(tmp_path: Path, gpurun: Gpurun, mode: str) -> None:
    run = run_under(gpurun, tmp_path, ON_GPU + MASKS, {"compile": mode})
    assert run.knobs == [once(mode)]
    assert all(run.printed["fits"])
    assert len({tuple(mask) for mask in run.printed["masks"]}) == 6 * 4


def test_attention_in_the_blocks_is_replaced(tmp_path: Path, gpurun: Gpurun, mode: str) -> None:
    script = ON_GPU + ATTENTION
    run = run_under(gpurun, tmp_path, script, {"attention": "sdpa", "compile": mode})
    assert sorted(run.knobs) == [("attention", "applied", "Net: causal"), once(mode)]
    assert run.printed == pytest.approx(bare(tmp_path, script), rel=1e-3)
