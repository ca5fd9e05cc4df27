"""Train a small convolutional network on synthetic images, as one writes it the first time."""

import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

try:
    from PIL import Image
except ImportError:
    Image = None

CLASSES = 10
PHOTO = 144
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


class Gratings(Dataset):
    """Noisy photographs of stripes, one direction a class, shrunk to what the network takes."""

    def __init__(self, samples, image_size, seed):
        self.samples = samples
        self.image_size = image_size
        self.seed = seed

    def __len__(self):
        return self.samples

    def photograph(self, index):
        rng = np.random.default_rng((self.seed, index))
        label = index % CLASSES
        angle = np.pi * label / CLASSES
        y, x = np.mgrid[0:PHOTO, 0:PHOTO]
        wave = np.sin(0.2 * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6.28))
        image = 128 + 60 * wave[:, :, None] + rng.normal(0, 100, (PHOTO, PHOTO, 3))
        if rng.random() < 0.1:
            label = int(rng.integers(CLASSES))  # people who label photographs err
        return image.clip(0, 255).astype(np.uint8), label

    def resize(self, image):
        size = (self.image_size, self.image_size)
        if Image is not None:
            return np.array(Image.fromarray(image).resize(size, Image.BICUBIC))
        pixels = torch.tensor(image).permute(2, 0, 1).unsqueeze(0).float()
        pixels = F.interpolate(pixels, size=size, mode="bicubic", antialias=True)
        return pixels[0].permute(1, 2, 0).clamp(0, 255).byte().numpy()

    def __getitem__(self, index):
        image, label = self.photograph(index)
        image = self.resize(image).astype(np.float32) / 255.0
        image = (image - MEAN) / STD
        return torch.tensor(image).permute(2, 0, 1).contiguous(), label


class SimpleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(64, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(64, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        return self.head(x.mean(dim=(2, 3)))


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def train_epoch(model, loader, optimizer, device, epoch):
    model.train()
    running = 0.0
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        synchronize()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        synchronize()
        running += loss.item()
        if step % 20 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    return running / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = 0
    for images, labels in loader:
        predicted = model(images.to(device)).argmax(dim=1).cpu()
        correct += (predicted == labels).sum().item()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--samples", type=int, default=3200)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--output", default="checkpoints")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = Gratings(args.samples, args.image_size, seed=1)
    test_set = Gratings(args.samples // 8, args.image_size, seed=2)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=0)
    test_loader = DataLoader(test_set, batch_size=args.batch_size, num_workers=0)

    model = SimpleNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    os.makedirs(args.output, exist_ok=True)

    for epoch in range(args.epochs):
        start = time.time()
        loss = train_epoch(model, train_loader, optimizer, device, epoch)
        accuracy = evaluate(model, test_loader, device)
        seconds = time.time() - start
        print(f"epoch {epoch} mean loss {loss:.4f} accuracy {accuracy:.3f} in {seconds:.1f} s")
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
            os.path.join(args.output, "slow_vision.pt"),
        )


if __name__ == "__main__":
    main()
