"""A log that is written and synced to the disk in each step. `--clean`: at the end."""

import argparse
import json
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Log:
    def __init__(self, path, each_step):
        self.path = path
        self.each_step = each_step
        self.entries = []

    def add(self, step, loss):
        self.entries.append({"step": step, "loss": loss})
        if self.each_step:
            self.save()

    def save(self):
        with open(self.path, "w") as file:
            for entry in self.entries[-20:] * 300:
                file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(960, 256), torch.arange(960) % 10)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 3072), nn.ReLU(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Log(os.path.join(folder, "log.jsonl"), not args.clean)
        while step < args.steps:
            for inputs, labels in loader:
                loss = nn.functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                log.add(step, loss.item())
                if step == args.steps:
                    break
        log.save()


if __name__ == "__main__":
    main()
