"""`workloads/gpt124m.py`, made data-parallel by hand: its batch on every rank."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from ranks import Ranks, Rate
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[1]))

from workloads.gpt124m import GPT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--lr", type=float, default=3e-4)
    options = parser.parse_args()
    torch.manual_seed(0)
    text = torch.randint(0, 50257, (2_000_000,))
    width, length = options.width, options.length
    with Ranks() as ranks:
        gpt = GPT(50257, length, options.layers, width // 64, width).to(ranks.device)
        model = DistributedDataParallel(gpt, device_ids=ranks.device_ids)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95))
        rate = Rate(ranks)
        torch.manual_seed(ranks.rank)
        for _ in range(options.steps):
            starts = torch.randint(0, len(text) - length - 1, (options.batch_size,))
            x = torch.stack([text[s : s + length] for s in starts]).to(ranks.device)
            y = torch.stack([text[s + 1 : s + 1 + length] for s in starts]).to(ranks.device)
            logits = model(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
        rate.tell(options.batch_size)


if __name__ == "__main__":
    main()
