"""A data set on slow storage: each sample waits. `--clean`: the same in memory."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds
        self.values = torch.randn(64, 256)

    def __len__(self):
        return 960

    def fetch(self, index):
        if self.seconds:
            time.sleep(self.seconds)
        return self.values[index % 64]

    def __getitem__(self, index):
        return self.fetch(index), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--width", type=int, default=3072)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = Records(0 if args.clean else 0.002)
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(
        nn.Linear(256, args.width),
        nn.ReLU(),
        nn.Linear(args.width, args.width),
        nn.ReLU(),
        nn.Linear(args.width, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
