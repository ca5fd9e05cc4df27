"""The training of `workloads/simplenet.py` as a performance engineer writes it by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import recipe
import torch
from PIL import Image
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1]))

from workloads.simplenet import Pictures, SimpleNet


class RawPictures(Pictures):
    """The same pictures as bytes, a whole batch at once: the device turns them into floats."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        size = (224, 224)
        pictures = [Image.fromarray(self.pictures[i]).resize(size, Image.BILINEAR) for i in indices]
        pixels = np.stack([np.asarray(picture) for picture in pictures])
        return torch.from_numpy(pixels), torch.from_numpy(self.labels[indices])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=12800)
    parser.add_argument("--lr", type=float, default=0.01)
    recipe.add_flags(parser, mode="default")
    recipe.add_image_flags(parser, channels_last=False)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = recipe.settle(options)
    order = torch.channels_last if options.channels_last else torch.contiguous_format
    model = SimpleNet().to(device, memory_format=order)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, fused=options.fused)

    def from_bytes(pixels: Tensor) -> Tensor:
        x = pixels.permute(0, 3, 1, 2).float() / 255
        return ((x - 0.5) / 0.25).contiguous(memory_format=order)

    def as_loaded(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=order)

    raw = options.device_transforms
    batches = recipe.loader(
        (RawPictures if raw else Pictures)(options.samples),
        options,
        shuffle=True,
        collate_fn=recipe.as_fetched if raw else None,
    )
    objective = recipe.Objective(
        model, nn.functional.cross_entropy, options, from_bytes if raw else as_loaded
    )
    recipe.train(objective, recipe.epochs(batches, options.epochs), optimizer, options, device)


if __name__ == "__main__":
    main()
