"""Attention on a CUDA device: the fast kernels run, and the training stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Gpurun
from tests.integration.knob_runs import KnobRun, run_under

pytestmark = pytest.mark.gpu

TRAIN = """
import json
import torch
from char_gpt import CharGPT

torch.manual_seed(0)
model = CharGPT(64, 256, 4, 2, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
losses = []
for step in range(16):
    torch.cuda.reset_peak_memory_stats()
    x = torch.randint(0, 64, (4, 1024), device="cuda")
    loss = model(x, (x + 1) % 64)[1]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"losses": losses, "peak": torch.cuda.max_memory_allocated()}))
"""


def train(gpurun: Gpurun, folder: Path, settings: dict[str, Any]) -> KnobRun:
    example = (REPOSITORY / "examples" / "char_gpt.py").read_text()
    (folder / "char_gpt.py").write_text(example)
    return run_under(gpurun, folder, TRAIN, settings)


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"autocast": "bf16"},
        pytest.param({"autocast": "bf16", "compile": "default"}, marks=pytest.mark.slow),
        pytest.param({"autocast": "bf16", "compile": "reduce-overhead"}, marks=pytest.mark.slow),
    ],
)
def test_a_causal_mask_is_found_and_the_scores_are_never_written_down(
    tmp_path: Path, gpurun: Gpurun, others: dict[str, Any]
) -> None:
    before = train(gpurun, tmp_path, others)
    after = train(gpurun, tmp_path, {**others, "attention": "sdpa"})
    assert {
        detail.partition(": ")[2] for knob, _, detail in after.knobs if knob == "attention"
    } == {"causal"}
    assert after.printed["losses"] == pytest.approx(before.printed["losses"], rel=0.03)
    if others.get("compile") != "reduce-overhead":  # the memory of CUDA graphs is not counted
        assert after.printed["peak"] < before.printed["peak"]
