"""One helper builds the loaders of training and validation, from keywords handed through."""

import argparse

import averages
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def _set(split, n):
    generator = torch.Generator().manual_seed(len(split))
    x = torch.randn(n, 32, generator=generator)
    return TensorDataset(x, x[:, :4].argmax(1))


def get_loader(split, batch_size, *, n=640, **kwargs):
    dataset = _set(split, n)
    kwargs.setdefault("drop_last", split == "train")
    return DataLoader(dataset, batch_size=batch_size, shuffle=split == "train", **kwargs)


def build_model(width):
    return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 4))


def evaluate(model, loader, criterion):
    model.eval()
    with torch.no_grad():
        losses = [criterion(model(x), y).item() for x, y in loader]
    model.train()
    return averages.mean(losses)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--width", type=int, default=64)
    opt = parser.parse_args()

    torch.manual_seed(3)
    train_loader = get_loader("train", 16, num_workers=opt.workers)
    val_loader = get_loader("val", 64, n=256, num_workers=opt.workers)
    model = build_model(opt.width)
    criterion = nn.CrossEntropyLoss()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    for epoch in range(3):
        running = []
        for x, y in train_loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            running.append(loss.item())
        print(f"epoch {epoch} loss {averages.mean(running):.5f}")
        print(f"epoch {epoch} val loss {evaluate(model, val_loader, criterion):.5f}")
