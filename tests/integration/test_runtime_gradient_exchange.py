"""How DistributedDataParallel exchanges gradients can be steered where a script does not say it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gpurun.records.spec import Exchange, RunSpec, Setting
from tests.forked import run_recorded
from tests.run_events import events

SCRIPT = """
import json, sys, tempfile
import torch, torch.distributed as dist

where = tempfile.mktemp(dir=".")
dist.init_process_group("gloo", init_method=f"file://{where}", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8), bucket_cap_mb=3)
exchanged = []

def hook(_, bucket):
    exchanged.append(bucket.buffer().numel())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done

if "hook" in sys.argv:
    model.register_comm_hook(None, hook)
for step in range(3):
    with model.no_sync():
        model(torch.ones(2, 8)).sum().backward()
    model.require_backward_grad_sync = True
    model(torch.ones(2, 8)).sum().backward()
print(json.dumps({
    "bucket": model.bucket_bytes_cap >> 20,
    "view": model.gradient_as_bucket_view,
    "exchanged": exchanged,
    "compressed": [str(hook) for hook, _ in model._comm_hooks],
    "hooks": len(model._forward_pre_hooks),
    "gradient": model.module.bias.grad.tolist(),
}))
dist.destroy_process_group()
"""


def ran(folder: Path, exchange: Exchange, *arguments: str) -> Any:
    """What the script prints."""
    (folder / "train.py").write_text(SCRIPT)
    run = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    spec = RunSpec(str(run), os.getpid(), exchange=exchange)
    done = run_recorded(["train.py", *arguments], folder, spec)
    assert done.returncode == 0, done.stderr.decode()
    assert events(run, "hook") == []
    return json.loads(done.stdout)


def test_gradients_that_are_left_out_stay_with_their_rank(tmp_path: Path) -> None:
    """Whatever the script sets in between: it accumulates two passes in each of its steps."""
    usual = ran(tmp_path, Exchange(), "hook")
    mute = ran(tmp_path, Exchange(left_out=True), "hook")
    assert usual["exchanged"] == [72] * 3
    assert mute["exchanged"] == []
    assert mute["gradient"] == usual["gradient"] == [12.0] * 8


def test_options_hold_where_the_script_says_nothing(tmp_path: Path) -> None:
    options = (Setting("bucket_cap_mb", 100), Setting("gradient_as_bucket_view", True))
    found = ran(tmp_path, Exchange(options=options))
    assert (found["bucket"], found["view"]) == (3, True)
    assert found["gradient"] == [12.0] * 8


@pytest.mark.parametrize(("arguments", "ours"), [((), True), (("hook",), False)])
def test_a_hook_of_the_scripts_own_comes_before_compression(
    tmp_path: Path, arguments: tuple[str, ...], ours: bool
) -> None:
    found = ran(tmp_path, Exchange(options=(Setting("compression", "fp16"),)), *arguments)
    assert any("fp16_compress_hook" in hook for hook in found["compressed"]) is ours
    assert len(found["compressed"]) == 1
    assert found["hooks"] == 0
    assert found["gradient"] == [12.0] * 8
