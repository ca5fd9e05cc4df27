"""Two ranks, one of which gets all long sequences. `--clean`: both get sequences of one length."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LENGTHS = (20, 140)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.GRU(64, 128, batch_first=True)
        self.head = nn.Linear(128, 8)

    def forward(self, x):
        return self.head(self.recurrent(x)[0][:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    length = sum(LENGTHS) // 2 if args.clean else LENGTHS[dist.get_rank()]
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(16, length, 64), torch.randint(0, 8, (16,))
    for _ in range(args.steps):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
