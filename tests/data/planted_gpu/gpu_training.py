"""The training that all planted faults are put into: a wide network that keeps a GPU busy."""

import argparse
import itertools
import time

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 4096 if DEVICE == "cuda" else 64
BATCH = 16384 if DEVICE == "cuda" else 32


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true", help="without the fault")
    parser.add_argument("--seconds", type=float, default=5)
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.activation = activation

    def forward(self, x):
        return x + self.second(self.activation(self.first(x)))


def network(blocks=2, activation=F.relu):
    torch.manual_seed(0)
    with torch.device(DEVICE):
        layers = [Block(activation) for _ in range(blocks)]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 256))


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)


def steps(seconds):
    """Numbers of steps, for so long."""
    end = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())


def batches(seconds, size=BATCH):
    """Batches that are on the device already."""
    data = torch.randn(2, size, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    labels = torch.randint(0, 256, (size,), device=DEVICE)
    for step in steps(seconds):
        yield data[step % 2], labels


def train_step(model, optimizer, inputs, labels):
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
