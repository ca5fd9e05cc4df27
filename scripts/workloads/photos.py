"""Train torchvision's ViT-B/16 on photographs: float32, JPEG files decoded in the process."""

import argparse
import io
import time

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, RESIZED = 224, 240


class Photos(Dataset):
    """JPEG files of 400x300 pixels, decoded, resized and cropped when they are read."""

    def __init__(self, count):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, 100, count)
        self.files = [self.photo(rng) for _ in range(256)]

    def photo(self, rng):
        coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((400, 300), Image.BICUBIC).save(file, "JPEG", quality=90)
        return file.getvalue()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        photo = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        scale = RESIZED / min(photo.size)
        photo = photo.resize([round(length * scale) for length in photo.size], Image.BILINEAR)
        left, top = ((length - SIDE) // 2 for length in photo.size)
        photo = photo.crop((left, top, left + SIDE, top + SIDE))
        x = torch.from_numpy(np.asarray(photo).copy()).permute(2, 0, 1).float() / 255
        return (x - 0.5) / 0.25, int(self.labels[index])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=25600)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torchvision.models.vit_b_16(num_classes=100).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(Photos(args.samples), batch_size=args.batch_size, shuffle=True)
    for epoch in range(args.epochs):
        model.train()
        began, total = time.time(), 0.0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        mean, seconds = total / len(loader), time.time() - began
        print(
            f"epoch {epoch} loss {mean:.4f} in {seconds:.1f} s, {args.samples / seconds:.0f} img/s"
        )


if __name__ == "__main__":
    main()
