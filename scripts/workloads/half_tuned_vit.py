"""Train a ViT-S on synthetic pictures, half tuned: float16 with a scaler, clipping, two workers."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, HEADS, LAYERS, CLASSES = 384, 6, 12, 100


class Pictures(Dataset):
    """Pictures of 256x256 pixels, cropped, sometimes mirrored and normalised when read."""

    def __len__(self):
        return 50_000

    def __getitem__(self, index):
        draws = torch.Generator().manual_seed(index)
        x = torch.randint(0, 256, (3, 256, 256), generator=draws, dtype=torch.uint8)
        x = x[:, 16:240, 16:240].float() / 255
        if index % 2:
            x = x.flip(-1)
        return (x - 0.45) / 0.225, index % CLASSES


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (width // HEADS) ** -0.5
        y = scores.softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 197, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = ViT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    scaler = torch.amp.GradScaler("cuda")
    loader = DataLoader(
        Pictures(), batch_size=args.batch_size, shuffle=True, num_workers=2, drop_last=True
    )
    step = 0
    while step < args.steps:
        for pictures, labels in loader:
            pictures, labels = pictures.cuda(), labels.cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
