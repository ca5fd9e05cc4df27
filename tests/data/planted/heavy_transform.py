"""A transform that computes on each sample. `--clean`: it was computed before training."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def spectrum(signal):
    for _ in range(6):
        signal = np.sort(np.abs(np.fft.rfft(np.tile(signal, 16)))[:256])
    return torch.from_numpy(signal.astype(np.float32))


class Signals(Dataset):
    def __init__(self, prepared):
        rng = np.random.default_rng(0)
        self.signals = rng.normal(size=(64, 256))
        self.prepared = [spectrum(s) for s in self.signals] if prepared else None

    def __len__(self):
        return 960

    def __getitem__(self, index):
        if self.prepared is not None:
            return self.prepared[index % 64], index % 10
        return spectrum(self.signals[index % 64]), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Signals(args.clean), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    step = 0
    while step < args.steps:
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
