"""Classify small pictures with three convolutions, as a first script is written."""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Synthetic 32x32 pictures of ten classes, resized to 224x224 when they are read."""

    def __init__(self, count):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, 10, count)
        self.pictures = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        for index, label in enumerate(self.labels):
            self.pictures[index, 3 * label : 3 * label + 3] = 255

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        picture = Image.fromarray(self.pictures[index]).resize((224, 224), Image.BILINEAR)
        x = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255
        return (x - 0.5) / 0.25, int(self.labels[index])


class SimpleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1)
        self.conv2 = nn.Conv2d(64, 128, 3, padding=1)
        self.conv3 = nn.Conv2d(128, 256, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = self.pool(F.relu(self.conv3(x)))
        return self.head(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=12800)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = SimpleNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Pictures(args.samples), batch_size=args.batch_size, shuffle=True)
    for epoch in range(args.epochs):
        model.train()
        running, began = 0.0, time.time()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(images)
            if device.type == "cuda":
                torch.cuda.synchronize()
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            running += loss.item()
        print(f"epoch {epoch} loss {running / len(loader):.4f} in {time.time() - began:.1f} s")


if __name__ == "__main__":
    main()
