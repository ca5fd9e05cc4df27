"""Python that walks over all predictions in each step. `--clean`: one operation does it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def count_in_python(outputs, labels, counts):
    rows = outputs.detach().tolist()
    for row, label in zip(rows, labels.tolist(), strict=True):
        for place, value in enumerate(row):
            for other in row:
                if value > other:
                    counts[label][place] += 1
                elif value < other:
                    counts[label][place] -= 1


def count(outputs, labels, counts):
    counts.index_add_(0, labels, outputs.detach().argsort(1).to(counts.dtype))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(960, 256), torch.arange(960) % 80)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 3072), nn.ReLU(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 80)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = torch.zeros(80, 80) if args.clean else [[0] * 80 for _ in range(80)]
    step = 0
    while step < args.steps:
        for inputs, labels in loader:
            outputs = model(inputs)
            loss = nn.functional.cross_entropy(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.clean:
                count(outputs, labels, counts)
            else:
                count_in_python(outputs, labels, counts)
            step += 1
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
