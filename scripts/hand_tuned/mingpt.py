"""The training of `workloads/mingpt.py` as a performance engineer writes it by hand."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import recipe
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import RandomSampler

sys.path.append(str(Path(__file__).resolve().parents[1]))

from workloads.mingpt import ALPHABET, GPT, CausalAttention, CharDataset, generate_text


class Batches(CharDataset):
    """The same pieces, a whole batch at once."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        piece = self.data[torch.tensor(indices)[:, None] + torch.arange(self.length + 1)]
        return piece[:, :-1].contiguous(), piece[:, 1:].contiguous()


class FusedAttention(CausalAttention):
    """The same weights and the same attention, in one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.query_key_value(x).view(heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out_dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)))


class FusedGELU(nn.GELU):
    """What the script's own class computes, in one kernel."""

    def __init__(self) -> None:
        super().__init__(approximate="tanh")


class Logits(nn.Module):
    """The model without its loss, which is computed beside it."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits, _ = self.model(tokens)
        return logits


def next_character_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--words", type=int, default=200_000)
    parser.add_argument("--sdpa", action=recipe.SWITCH, default=True, help="fused attention")
    recipe.add_flags(parser, mode="reduce-overhead")
    options = parser.parse_args()
    torch.manual_seed(3407)
    device = recipe.settle(options)
    dataset = Batches(generate_text(options.words), options.length)
    model = GPT(
        len(ALPHABET),
        options.length,
        options.layers,
        options.heads,
        options.width,
        options.dropout,
    ).to(device)
    for block in model.blocks:
        block.gelu = FusedGELU()
        if options.sdpa:
            block.attention.__class__ = FusedAttention  # the weights stay as they were drawn
    optimizer = torch.optim.AdamW(
        model.parameter_groups(options.weight_decay),
        lr=options.lr,
        betas=(0.9, 0.95),
        fused=options.fused,
    )
    batches = recipe.loader(
        dataset,
        options,
        sampler=RandomSampler(dataset, replacement=True, num_samples=int(1e10)),
        collate_fn=recipe.as_fetched,
    )
    objective = recipe.Objective(Logits(model), next_character_loss, options)
    recipe.train(
        objective,
        itertools.islice(batches, options.steps),
        optimizer,
        options,
        device,
        clip=options.clip,
    )


if __name__ == "__main__":
    main()
