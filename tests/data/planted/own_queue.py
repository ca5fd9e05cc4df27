"""Batches come too slowly from a thread of the script's own. `--clean`: as fast as used."""

import argparse
import queue
import threading
import time

import torch
from torch import nn


def produce(batches, seconds, steps):
    for _ in range(steps):
        time.sleep(seconds)
        batches.put((torch.randn(64, 256), torch.zeros(64, dtype=torch.long)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batches = queue.Queue(maxsize=4)
    seconds = 0.0 if args.clean else 0.05
    producer = threading.Thread(target=produce, args=(batches, seconds, args.steps), daemon=True)
    producer.start()
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(args.steps):
        inputs, labels = batches.get()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
