"""The training of `workloads/resnet50.py` as a performance engineer writes it by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import recipe
import torch
import torchvision
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1]))

from workloads.resnet50 import Pictures


class RawPictures(Pictures):
    """The same pictures as bytes, a whole batch at once: the device turns them into floats."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        pixels = self.pool[[index % 256 for index in indices]]
        return torch.from_numpy(pixels), torch.from_numpy(self.labels[indices])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=12800)
    parser.add_argument("--lr", type=float, default=0.05)
    recipe.add_flags(parser, mode="reduce-overhead")
    recipe.add_image_flags(parser, channels_last=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = recipe.settle(options)
    order = torch.channels_last if options.channels_last else torch.contiguous_format
    model = torchvision.models.resnet50().to(device, memory_format=order)
    optimizer = torch.optim.SGD(
        model.parameters(), options.lr, momentum=0.9, weight_decay=1e-4, fused=options.fused
    )
    raw = options.device_transforms
    pictures = (RawPictures if raw else Pictures)(options.samples)
    mean, std = pictures.mean.to(device), pictures.std.to(device)

    def from_bytes(pixels: Tensor) -> Tensor:
        x = pixels.permute(0, 3, 1, 2).float() / 255
        return ((x - mean) / std).contiguous(memory_format=order)

    def as_loaded(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=order)

    batches = recipe.loader(
        pictures,
        options,
        shuffle=True,
        drop_last=True,
        collate_fn=recipe.as_fetched if raw else None,
    )
    objective = recipe.Objective(
        model, nn.functional.cross_entropy, options, from_bytes if raw else as_loaded
    )
    recipe.train(objective, recipe.epochs(batches, options.epochs), optimizer, options, device)


if __name__ == "__main__":
    main()
