"""A small convolutional network on 3×32×32 images, which are normalised on the device."""

from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 4


class Images(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.labels = torch.randint(0, CLASSES, (512,), generator=generator)
        coarse = torch.randn(CLASSES, 3, 8, 8, generator=generator)
        prototypes = nn.functional.interpolate(coarse, scale_factor=4)
        noise = 1.5 * torch.randn(512, 3, 32, 32, generator=generator)
        images = prototypes[self.labels] + noise
        self.images = (images * 30 + 128).clamp(0, 255).to(torch.uint8)
        self.labels[::5] = torch.randint(0, CLASSES, (103,), generator=generator)  # some are wrong

    def __len__(self):
        return 512

    def __getitem__(self, index):
        image = self.images[index]
        return (image.flip(-1) if torch.rand(()) < 0.5 else image), self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (3, 8, 16, 32)
        layers = []
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(32 * 4 * 4, CLASSES)

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    loader = DataLoader(Images(), batch_size=32, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.004, momentum=0.9, weight_decay=1e-3)
    for _ in range(8):
        model.train()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            images = (images.float() / 255 - 0.5) / 0.2
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
