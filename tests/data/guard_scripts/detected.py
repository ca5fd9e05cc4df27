"""A detector with two scales: it returns lists of boxes, scores and integer classes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 6


class Scenes(Dataset):
    def __len__(self):
        return 250

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(1000 + index)
        scene = torch.randn(3, 32, 32, generator=generator)
        left, top = torch.randint(0, 20, (2,), generator=generator).tolist()
        scene[index % 3, top : top + 10, left : left + 10] += 3
        return scene


def block(before, after, stride):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.SiLU(),
    )


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(block(3, 16, 2), block(16, 24, 2))
        self.fine, self.coarse = block(24, 32, 1), block(24, 32, 2)
        self.boxes = nn.ModuleList(nn.Conv2d(32, 4, 1) for _ in range(2))
        self.classes = nn.ModuleList(nn.Conv2d(32, CLASSES, 1) for _ in range(2))

    def forward(self, scenes):
        shared = self.stem(scenes)
        boxes, scores, labels = [], [], []
        for level, branch in enumerate((self.fine, self.coarse)):
            features = branch(shared)
            boxes.append(self.boxes[level](features).flatten(2).transpose(1, 2).exp())
            chances = self.classes[level](features).flatten(2).softmax(1)
            best, label = chances.max(1)
            scores.append(best)
            labels.append(label)
        return boxes, torch.cat(scores, 1), torch.cat(labels, 1)


def load(model):
    """Stand in for a checkpoint: weights and statistics such as a trained network has."""
    generator = torch.Generator().manual_seed(13)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_in = module.weight[0].numel()
            drawn = torch.randn(module.weight.shape, generator=generator)
            module.weight.data = drawn * (2 / fan_in) ** 0.5
        elif isinstance(module, nn.BatchNorm2d):
            module.running_mean = 0.2 * torch.randn(module.num_features, generator=generator)
            module.running_var = 0.5 + torch.rand(module.num_features, generator=generator)
    return model


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load(Detector()).to(device)
    model.eval()
    found = []
    for _ in range(2):
        found = []
        for scenes in DataLoader(Scenes(), batch_size=6, num_workers=0):
            with torch.no_grad():
                (fine, coarse), scores, labels = model(scenes.to(device))
            boxes = torch.cat([fine, coarse], 1)
            chosen = scores.argmax(1)
            rows = torch.arange(len(scenes), device=device)
            kept = boxes[rows, chosen], scores[rows, chosen], labels[rows, chosen]
            found.append([each.cpu() for each in kept])
    boxes, scores, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    print(labels.bincount(minlength=CLASSES).tolist(), f"{boxes.mean():.5f} {scores.mean():.5f}")
    return boxes, scores, labels


if __name__ == "__main__":
    main()
