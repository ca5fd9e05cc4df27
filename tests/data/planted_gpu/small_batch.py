"""A recurrent network with a batch of 4. `--clean`: a batch of 8192."""

import torch
from gpu_training import DEVICE, arguments, steps
from torch import nn
from torch.nn import functional as F

LENGTH, HIDDEN = 64, 1024


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(HIDDEN, HIDDEN, num_layers=2, batch_first=True)
        self.head = nn.Linear(HIDDEN, 256)

    def forward(self, x):
        return self.head(self.recurrent(x)[0][:, -1])


def main():
    args = arguments()
    torch.manual_seed(0)
    model = Reader().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    size = 8192 if args.clean else 4
    inputs = torch.randn(size, LENGTH, HIDDEN, device=DEVICE)
    labels = torch.randint(0, 256, (size,), device=DEVICE)
    for _ in steps(args.seconds):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
