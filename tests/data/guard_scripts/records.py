"""Regression on records of one binary file, read through one handle that stays open."""

import os
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 9


class Records(Dataset):
    def __init__(self, path):
        # unbuffered, as it should be for random access; workers that share it are the trap
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115
        self.count = os.path.getsize(path) // (4 * WIDTH) - 8  # the file ends in padding

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.file.seek(4 * WIDTH * index)
        time.sleep(0.0002)  # a slow disk
        x = np.frombuffer(self.file.read(4 * WIDTH - 4), np.float32).copy()
        y = np.frombuffer(self.file.read(4), np.float32)[0]
        return {"x": torch.from_numpy(x), "y": y, "name": f"record {index}"}


def main():
    torch.manual_seed(0)
    generator = np.random.default_rng(3)
    x = generator.standard_normal((328, WIDTH - 1), np.float32)
    y = np.sin(x[:, :3]).sum(1, keepdims=True) + 0.3 * generator.standard_normal((328, 1))
    with tempfile.NamedTemporaryFile() as file:
        file.write(np.hstack([x, y]).astype(np.float32).tobytes())
        file.flush()
        train(Records(file.name))


def train(records):
    model = nn.Sequential(nn.Linear(WIDTH - 1, 32), nn.Tanh(), nn.Linear(32, 1))
    loader = DataLoader(records, batch_size=16, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(8):
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
