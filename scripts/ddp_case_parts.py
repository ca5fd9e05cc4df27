"""Pieces of which the scripts that try `--ddp` are put together."""

from __future__ import annotations

IMPORTS = """\
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
DOUBLE = "torch.set_default_dtype(torch.float64)\n"
DATA = """
inputs = torch.randn(150, 12)
labels = (inputs[:, :4] + 0.5 * torch.randn(150, 4)).argmax(dim=1)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
"""
MODEL = """
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4)).to(device)
"""
START = """
torch.save(model.state_dict(), "start.pt")
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
"""
LOOP = """
for epoch in range(3):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
{loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open("steps.csv", "a") as log:
            print(epoch, loss.item(), sep=",", file=log)
"""
END = """
torch.save(model.state_dict(), "out.pt")
"""


def indented(code: str, by: int = 8) -> str:
    return "\n".join(" " * by + line for line in code.strip("\n").splitlines())


def classifier(
    loss: str, rate: float = 0.1, before: str = "", model: str = MODEL, double: bool = True
) -> str:
    """A script of the usual shape. `before`: definitions above the loop."""
    return "".join(
        [
            IMPORTS,
            DOUBLE if double else "",
            DATA,
            model,
            before,
            START.format(rate=rate),
            LOOP.format(loss=indented(loss)),
            END,
        ]
    )
