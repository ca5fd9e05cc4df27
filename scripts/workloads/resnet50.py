"""Train torchvision's ResNet-50 on synthetic pictures, in float32, with a loader in the process."""

import argparse
import time

import numpy as np
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Decoded pictures of 1,000 classes, turned into normalised tensors when they are read."""

    def __init__(self, count):
        rng = np.random.default_rng(0)
        self.pool = rng.integers(0, 256, (256, 224, 224, 3), dtype=np.uint8)
        self.labels = rng.integers(0, 1000, count)
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        x = torch.from_numpy(self.pool[index % 256]).permute(2, 0, 1).float() / 255
        return (x - self.mean) / self.std, int(self.labels[index])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=12800)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torchvision.models.resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss().to(device)
    loader = DataLoader(
        Pictures(args.samples), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    for epoch in range(args.epochs):
        model.train()
        began = time.time()
        for step, (images, labels) in enumerate(loader):
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        print(f"epoch {epoch}: {len(loader) * args.batch_size / (time.time() - began):.0f} img/s")


if __name__ == "__main__":
    main()
