"""A trial loads torch's compiler only when something uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import sys
from gpurun.runtime.trial import late_dynamo
late_dynamo.install()
import torch
loaded = lambda: "torch._dynamo.eval_frame" in sys.modules
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
step()
assert not loaded()
"""
AFTER = """
assert loaded()
assert type(sys.modules["torch._dynamo"]).__name__ == "module" == type(torch._dynamo).__name__
step()
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
step()
print("ok")
"""


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "use",
    [
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.zeros(2)).sum() == 2",
        "import torch._dynamo.config as own\nown.suppress_errors = True\n"
        "assert torch._dynamo.config is own is torch._dynamo.convert_frame.config",
        "import torch._dynamo.debug_utils as own\nassert own.__spec__.name == own.__name__",
        "from torch._dynamo import OptimizedModule",
        "import torch._dynamo as dynamo\ndynamo.reset()",
        "torch._dynamo.reset()",
        "disabled = torch.compiler.disable(model)\nassert isinstance(disabled, torch.nn.Module)",
        "@torch._dynamo.disable\ndef f(x): return x + 1\nassert f(1) == 2",
        "import logging\nlogging.disable(logging.WARNING)\ntorch.compile(step, backend='eager')()",
    ],
)
def test_what_uses_the_compiler_gets_it(tmp_path: Path, use: str) -> None:
    done = run(START + use + AFTER, tmp_path)
    assert (done.stdout, done.stderr) == ("ok\n", ""), done.stderr


def test_what_looks_at_all_modules_does_not_load_it(tmp_path: Path) -> None:
    look = """
import inspect, pickle
assert inspect.getmodule(step).__name__ == "__main__"
inspect.getmodule(type("Other", (), {}))
for module in list(sys.modules.values()):
    getattr(module, "__file__", None), getattr(module, "__warningregistry__", None)
assert not loaded()
print("ok")
"""
    done = run(START + look, tmp_path)
    assert (done.stdout, done.stderr) == ("ok\n", ""), done.stderr


def test_functions_of_an_optimizer_stay_out_of_what_is_compiled_later(tmp_path: Path) -> None:
    """They were called before dynamo was loaded. Dynamo must not trace them afterwards."""
    late = """
def grow(x):
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    return x + 1
assert torch.compile(grow, backend="eager")(torch.zeros(1)).item() == 1
assert len(optimizer.param_groups) == 2
print("ok")
"""
    done = run(START + late, tmp_path)
    assert (done.stdout, done.stderr) == ("ok\n", ""), done.stderr
