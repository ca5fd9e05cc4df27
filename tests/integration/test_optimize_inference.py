"""A tuning of a script that only infers: outputs are compared, and the words say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.integration.tunings import launch, report_of

pytestmark = pytest.mark.slow

INFERENCE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(512, 1024), *[torch.nn.Linear(1024, 1024) for _ in range(4)],
    torch.nn.ReLU(), torch.nn.Linear(1024, 10),
).eval()
data = TensorDataset(torch.randn(1000, 512))
with torch.no_grad():
    for _ in range(200):
        for x, in DataLoader(data, batch_size=64):
            model(x)
"""


def test_a_knob_that_returns_zeros_is_never_kept_however_fast(tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFERENCE)
    knob = (REPOSITORY / "tests" / "data" / "knobs_outputs" / "returned.py").read_text()
    (tmp_path / "quick.py").write_text(knob.replace("Effect.NUMERICS", "Effect.PIPELINE"))
    (tmp_path / "gpurun.toml").write_text('knobs = ["quick.py"]\n')
    words = ("--tune-only", "--allow", "pipeline", "--budget", "150s", "--max-trials", "8")
    done = launch(tmp_path, "--optimize", *words, "infer.py")
    told = done.stderr.decode()
    report = report_of(tmp_path)
    rows = [row for row in report["ladder"] if "returned" in row["changes"]]
    assert rows, told
    assert not any(row["kept"] for row in rows)
    assert "is zero" in rows[0]["reason"]
    assert "returned" not in report["chosen"]["knobs"]
    assert "same training" not in told
    assert report["rejections"][0]["guard"]["forward_only"]
    assert "output guard: rejected" in told
    if report["verdict"] == "faster":  # host_allocator may gain
        assert "same outputs: within" in told
    else:
        assert "same outputs" not in told
