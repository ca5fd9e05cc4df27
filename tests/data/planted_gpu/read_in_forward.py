"""Each block reads a value of the GPU to decide whether it runs. `--clean`: it is not asked."""

import torch
from gpu_training import DEVICE, arguments, batches, network, optimizer_of, train_step
from torch import nn


class Gated(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block
        self.register_buffer("open", torch.ones((), device=DEVICE))

    def forward(self, x):
        if self.open.item() > 0:
            x = self.block(x)
        return x


def main():
    args = arguments()
    model = network(blocks=12)
    if not args.clean:
        model = nn.Sequential(*[Gated(part) for part in model])
    optimizer = optimizer_of(model)
    for inputs, labels in batches(args.seconds, 2048):
        train_step(model, optimizer, inputs, labels)


if __name__ == "__main__":
    main()
