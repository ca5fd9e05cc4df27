"""Autocast and a GradScaler are there already, with gradients accumulated over two batches."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
use_amp = True
accumulation = 2


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def make_data(n):
    x = torch.randn(n, 48)
    return TensorDataset(x, (x.sum(dim=1, keepdim=True) > 0).float())


if __name__ == "__main__":
    torch.manual_seed(11)
    net = nn.Sequential(nn.Linear(48, 64), Block(64), Block(64), nn.Linear(64, 1)).to(device)
    loader = DataLoader(make_data(1024), 16, True)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(2):
        for i, (inputs, target) in enumerate(loader):
            with torch.autocast(device_type=device, dtype=torch.bfloat16, enabled=use_amp):
                output = net(inputs.to(device, non_blocking=True))
                loss = loss_fn(output.float(), target.to(device, non_blocking=True))
            scaler.scale(loss / accumulation).backward()
            if (i + 1) % accumulation == 0:
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad(set_to_none=True)
            if i % 8 == 0:
                print(f"epoch {epoch} iter {i} loss {loss.item():.5f}")
