"""Classes of images by a network with batch norm; nothing is trained, the last batch is smaller."""

from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


class Images(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.labels = torch.randint(0, CLASSES, (333,), generator=generator)
        prototypes = torch.randn(CLASSES, 3, 16, 16, generator=generator)
        self.images = prototypes[self.labels] + torch.randn(333, 3, 16, 16, generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        for before, after in pairwise((3, 16, 16, 32)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.ReLU()]
        self.features = nn.Sequential(*layers[:-1], nn.AvgPool2d(2))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(32 * 8 * 8, CLASSES)

    def forward(self, images):
        return self.head(self.dropout(self.features(images).flatten(1)))


def load(model):
    """Stand in for a checkpoint: weights and statistics such as a trained network has."""
    generator = torch.Generator().manual_seed(11)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_in = module.weight[0].numel()
            drawn = torch.randn(module.weight.shape, generator=generator)
            module.weight.data = drawn * (2 / fan_in) ** 0.5
        elif isinstance(module, nn.BatchNorm2d):
            channels = module.num_features
            module.running_mean = 0.3 * torch.randn(channels, generator=generator)
            module.running_var = 0.5 + 1.5 * torch.rand(channels, generator=generator)
            module.weight.data = 0.7 + 0.6 * torch.rand(channels, generator=generator)
            module.bias.data = 0.1 * torch.randn(channels, generator=generator)
    model.head.weight.data = 0.05 * torch.randn(model.head.weight.shape, generator=generator)
    return model


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(Net()).to(device).eval()
    loader = DataLoader(Images(), batch_size=8)
    predicted, confident = [], []
    for _ in range(2):
        predicted, confident = [], []
        with torch.inference_mode():
            for images, _ in loader:
                logits = model(images.to(device))
                predicted.append(logits.argmax(1).cpu())
                confident.append(logits.softmax(1).amax(1).cpu())
    predicted, confident = torch.cat(predicted), torch.cat(confident)
    print(predicted.bincount(minlength=CLASSES).tolist(), f"{confident.mean():.5f}")
    return predicted, confident


if __name__ == "__main__":
    main()
