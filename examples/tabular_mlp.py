"""Fit a multilayer perceptron to a synthetic table of numbers."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_table(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, columns, generator=generator)
    weights = torch.randn(columns, generator=torch.Generator().manual_seed(7))
    target = torch.tanh(features @ weights / columns**0.5) + 0.3 * features[:, 0] * features[:, 1]
    noise = 0.05 * torch.randn(rows, generator=generator)
    return TensorDataset(features, (target + noise).unsqueeze(1))


def build_model(columns, width):
    return nn.Sequential(
        nn.Linear(columns, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, 1),
    )


def train_epoch(model, loader, optimizer, device):
    model.train()
    total = torch.zeros((), device=device)
    for features, target in loader:
        features = features.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        loss = nn.functional.mse_loss(model(features), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total.item() / len(loader)


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    total = torch.zeros((), device=device)
    for features, target in loader:
        total += nn.functional.mse_loss(model(features.to(device)), target.to(device))
    return total.item() / len(loader)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-e", "--epochs", type=int, default=15)
    parser.add_argument("-b", "--batch-size", type=int, default=256)
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save", type=Path, default=Path("tabular_mlp.pt"))
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = {"batch_size": args.batch_size, "pin_memory": device.type == "cuda"}
    train = DataLoader(make_table(args.rows, args.columns, 1), shuffle=True, **options)
    test = DataLoader(make_table(args.rows // 8, args.columns, 2), **options)

    model = build_model(args.columns, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    best = float("inf")
    for epoch in range(args.epochs):
        train_loss = train_epoch(model, train, optimizer, device)
        test_loss = evaluate(model, test, device)
        schedule.step()
        print(f"epoch {epoch} train {train_loss:.4f} test {test_loss:.4f}")
        if test_loss < best:
            best = test_loss
            torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
