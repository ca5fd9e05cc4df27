"""Images with random transforms in the data set; batch norm, dropout, momentum, a schedule."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.labels = torch.randint(0, 4, (256,), generator=generator)
        prototypes = torch.randn(4, 3, 8, 8, generator=generator)
        self.images = prototypes[self.labels] + torch.randn(256, 3, 8, 8, generator=generator)
        self.labels[::5] = torch.randint(0, 4, (52,), generator=generator)  # some are wrong

    def __len__(self):
        return 256

    def __getitem__(self, index):
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn(3, 8, 8), self.labels[index]


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 4),
    )  # fmt: skip
    loader = DataLoader(Images(), batch_size=16, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(8):
        model.train()
        for image, label in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(image), label)
            loss.backward()
            optimizer.step()
        schedule.step()


if __name__ == "__main__":
    main()
