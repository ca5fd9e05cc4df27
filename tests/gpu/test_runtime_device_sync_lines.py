"""What the script reads from the GPU is told apart from what it reads from the host's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_runtime_trial import STOP, finish, start
from tests.run_events import events

pytestmark = pytest.mark.gpu

SCRIPT = """
model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for count in range(100):
    x, y = torch.randn(8, 8), torch.randint(0, 2, (8,))
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    loss.detach().cpu().numpy().tolist()
    y.tolist()
    if loss.isnan(): break
"""


def test_only_what_lies_on_the_gpu_is_waited_for(tmp_path: Path) -> None:
    code, _, err = finish(start(tmp_path, SCRIPT, stop={**STOP, "audit_steps": 5}))
    assert code == 0, err
    assert events(tmp_path / "run", "hook") == []
    (seen,) = events(tmp_path / "run", "waits")
    found = {(read["call"], read["device"]): read["calls"] for read in seen["reads"]}
    assert found == {(".cpu()", "cuda"): 4, (".tolist()", "cpu"): 4, ("a condition", "cuda"): 4}
