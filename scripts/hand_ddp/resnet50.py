"""`workloads/resnet50.py`, made data-parallel by hand: its batch on every rank."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torchvision
from ranks import Ranks, Rate
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

sys.path.append(str(Path(__file__).resolve().parents[1]))

from workloads.resnet50 import Pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--samples", type=int, default=12800)
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()
    torch.manual_seed(0)
    with Ranks() as ranks:
        model = torchvision.models.resnet50().to(ranks.device)
        model = DistributedDataParallel(model, device_ids=ranks.device_ids)
        optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=1e-4)
        criterion = nn.CrossEntropyLoss()
        pictures = Pictures(options.samples)
        sampler = DistributedSampler(pictures, ranks.size, ranks.rank, drop_last=True)
        loader = DataLoader(pictures, options.batch_size, sampler=sampler, drop_last=True)
        rate, step, epoch = Rate(ranks), 0, 0
        while step < options.steps:
            sampler.set_epoch(epoch)
            epoch += 1
            for images, labels in loader:
                images, labels = images.to(ranks.device), labels.to(ranks.device)
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rate.step()
                step += 1
                if step == options.steps:
                    break
        rate.tell(options.batch_size)


if __name__ == "__main__":
    main()
