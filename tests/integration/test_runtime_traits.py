"""What the script does by itself is noticed in all its spellings, and without a trace of us."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Gpurun

SPELLINGS = {
    "with torch.autocast('cpu', torch.bfloat16): pass": "autocast",
    "with torch.cpu.amp.autocast(dtype=torch.bfloat16): pass": "autocast",
    "torch.autocast('cpu', torch.bfloat16)(lambda: None)()": "autocast",
    "torch.cuda.amp.GradScaler()": "grad_scaler",
    "torch.amp.GradScaler('cpu')": "grad_scaler",
    "torch.compile(torch.nn.Linear(1, 1))": "compile",
}


def test_every_spelling_is_noticed_and_warnings_name_the_script(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    lines = ["import os, torch, warnings", "warnings.simplefilter('always')"]
    for spelling in SPELLINGS:
        lines += ["if os.fork() == 0:", f"    {spelling}", "    os._exit(0)", "os.wait()"]
    (tmp_path / "train.py").write_text("\n".join(lines) + "\n")
    result = gpurun("train.py")
    assert result.returncode == 0, result.stderr.decode()
    assert b"gpurun/runtime" not in result.stderr
    found = [
        event["trait"]
        for path in sorted(tmp_path.glob(".gpurun/runs/*/events-*.jsonl"))
        for event in map(json.loads, path.read_text().splitlines())
        if event["event"] == "trait"
    ]
    assert sorted(found) == sorted(SPELLINGS.values())


def test_autocast_that_torch_enters_for_itself_is_not_the_scripts(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch.utils.checkpoint import checkpoint\n"
        "x = torch.ones(2, requires_grad=True)\n"
        "checkpoint(lambda v: v * 2, x, use_reentrant=False).sum().backward()\n"
    )
    assert gpurun("train.py").returncode == 0
    (events,) = tmp_path.glob(".gpurun/runs/*/events-*.jsonl")
    assert '"trait":"autocast"' not in events.read_text()
