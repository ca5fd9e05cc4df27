"""A batch sampler that makes all batches of an epoch before the first. `--clean`: in no time."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sorted:
    def __init__(self, rounds):
        self.rounds = rounds

    def __len__(self):
        return 4

    def __iter__(self):
        for _ in range(self.rounds):
            sum(number * number for number in range(10_000))
        return iter([list(range(start, start + 32)) for start in range(0, 128, 32)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = TensorDataset(torch.randn(128, 256), torch.zeros(128, dtype=torch.long))
    loader = DataLoader(samples, batch_sampler=Sorted(0 if args.clean else 300))
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(args.steps // len(loader)):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
