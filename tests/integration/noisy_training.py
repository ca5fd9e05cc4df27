"""A small training whose model draws noise, on the CPU or on a GPU: for the tests of compiling."""

from __future__ import annotations

SCRIPT = """
import json
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(64, 16), nn.Linear(8, 64)
        self.last = nn.Dropout(DROPOUT)
    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, 1)
        return self.last(self.decode(mean + torch.randn_like(spread) * spread.exp()))

model = Noisy().to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(12):
    x = torch.rand(16, 64).to(DEVICE)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""


def noisy_training(device: str, dropout: float = 0.0) -> str:
    """The script, which prints its losses as a JSON list."""
    return SCRIPT.replace("DEVICE", repr(device)).replace("DROPOUT", repr(dropout))
