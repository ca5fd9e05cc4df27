"""The training of `workloads/gpt124m.py` as a performance engineer writes it by hand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import recipe
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1]))

from workloads.gpt124m import GPT, Attention

VOCABULARY = 50257


class FusedAttention(Attention):
    """The same weights and the same attention, in one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def pieces(text: Tensor, options: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of tokens and of those that follow, as the script draws them; pinned for a GPU."""
    steps = torch.arange(options.length + 1)
    for _ in range(options.steps):
        starts = torch.randint(0, len(text) - options.length - 1, (options.batch_size,))
        piece = text[starts[:, None] + steps]
        x, y = piece[:, :-1].contiguous(), piece[:, 1:].contiguous()
        yield (x.pin_memory(), y.pin_memory()) if torch.cuda.is_available() else (x, y)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--sdpa", action=recipe.SWITCH, default=True, help="fused attention")
    recipe.add_flags(parser, mode="default", loader=False)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = recipe.settle(options)
    text = torch.randint(0, VOCABULARY, (2_000_000,))
    width = options.width
    model = GPT(VOCABULARY, options.length, options.layers, width // 64, width).to(device)
    if options.sdpa:
        for block in model.blocks:
            block.attention.__class__ = FusedAttention  # the weights stay as they were drawn
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.95), fused=options.fused
    )
    objective = recipe.Objective(model, next_token_loss, options)
    recipe.train(objective, pieces(text, options), optimizer, options, device, clip=1.0)


if __name__ == "__main__":
    main()
