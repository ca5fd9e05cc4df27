"""The worked example's Triton kernels: the numbers of the spelled-out norm; same training."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.conftest import Gpurun
from tests.integration.knob_runs import run_under
from tests.integration.test_example_knob import BY_HAND, KNOB, TRAIN, norms

pytestmark = pytest.mark.gpu
__all__ = ["norms"]

ON_GPU = TRAIN.replace("Net()\n", "Net().cuda()\n").replace(", 16)", ', 16, device="cuda")')


@pytest.mark.parametrize("rows", [1, 7, 5000])
@pytest.mark.parametrize("width", [1, 40, 768, 4096, 5000])
@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float16),
    ],
)
def test_the_kernels_compute_the_spelled_out_norm(
    norms: ModuleType, rows: int, width: int, dtype: torch.dtype, weights: torch.dtype
) -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    x, slope = torch.randn(2, rows, width, device="cuda", dtype=dtype).unbind()
    weight = torch.randn(width, device="cuda", dtype=weights)
    found = []
    for compute in (norms.rms_norm, norms.spelled_out):
        leaves = (x.clone().requires_grad_(), weight.clone().requires_grad_())
        y = compute(*leaves, 1e-5, dtype)
        found.append((y, *torch.autograd.grad(y, leaves, slope)))
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype is theirs.dtype
        bound = (1e-4 if dtype is torch.float32 else 2e-2) * float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=max(bound, 1e-4))


def test_rows_that_lie_apart_in_memory_are_read_right(norms: ModuleType) -> None:
    pytest.importorskip("triton")
    x = torch.randn(64, 3, 100, device="cuda").transpose(0, 1)
    weight = torch.randn(200, device="cuda")[::2]
    y = norms.rms_norm(x, weight, 1e-5, torch.float32)
    torch.testing.assert_close(y, norms.spelled_out(x, weight, 1e-5, torch.float32))


def test_a_training_under_the_knob_goes_the_same_way(tmp_path: Path, gpurun: Gpurun) -> None:
    pytest.importorskip("triton")
    (tmp_path / "gpurun.toml").write_text(f'knobs = ["{KNOB}"]\n')
    script = ON_GPU.replace("CLASS", BY_HAND).replace("NORM", "RMSNorm").replace("COMPILE", "")
    bare = run_under(gpurun, tmp_path, script, {}).printed
    run = run_under(gpurun, tmp_path, script, {"fused_rms_norm": True})
    assert run.outcomes("fused_rms_norm") == ["applied"]
    assert (run.printed["fused"], bare["fused"]) == (2, 0)
    assert run.printed["losses"] == pytest.approx(bare["losses"], rel=1e-3)
    assert run.printed["draw"] == bare["draw"]
