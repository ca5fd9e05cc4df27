"""Trains and evaluates by turns; warm-up, two groups of weights, random flips."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, EPOCHS = 4, 6


class Images(Dataset):
    def __init__(self, seed, count, augmented):
        prototypes = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(3))
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, CLASSES, (count,), generator=generator)
        noise = 1.5 * torch.randn(count, 3, 8, 8, generator=generator)
        self.images, self.augmented = prototypes[self.labels] + noise, augmented

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augmented and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(12 * 16, CLASSES)

    def forward(self, images):
        features = nn.functional.max_pool2d(self.second(self.first(images)), 2)
        return self.head(self.dropout(features.flatten(1)))


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = 0
    for images, labels in loader:
        right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    return right / len(loader.dataset)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    training = DataLoader(Images(1, 330, True), batch_size=16, shuffle=True)
    held_out = DataLoader(Images(2, 120, False), batch_size=32)
    model = Net().to(device)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.01},
    ]
    optimizer = torch.optim.AdamW(groups, lr=4e-3)
    warmed = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 1 - step / 140)
    )
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in training:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warmed.step()
        print(f"epoch {epoch}: {accuracy(model, held_out, device):.4f} of the held-out images")


if __name__ == "__main__":
    main()
