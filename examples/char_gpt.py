"""Train a small character-level GPT on generated sentences."""

import argparse
import csv
import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SUBJECTS = ["the cat", "a dog", "my neighbour", "the old captain", "one engineer", "nobody"]
VERBS = ["sees", "likes", "paints", "forgets", "repairs", "finds"]
OBJECTS = ["the moon", "a red boat", "three keys", "the broken clock", "a letter", "some bread"]
PLACES = ["at home", "in the garden", "by the sea", "on a hill", "after dinner", "at night"]


def generate_text(sentences, seed):
    rng = random.Random(seed)
    parts = (SUBJECTS, VERBS, OBJECTS, PLACES)
    return "\n".join(" ".join(rng.choice(words) for words in parts) for _ in range(sentences))


class SelfAttention(nn.Module):
    def __init__(self, width, heads, block_size):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        mask = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("mask", mask.view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(y)


class Block(nn.Module):
    def __init__(self, width, heads, block_size):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, block_size)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class CharGPT(nn.Module):
    def __init__(self, vocabulary, width, heads, layers, block_size):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(Block(width, heads, block_size) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, index, targets=None):
        x = self.tokens(index) + self.positions(torch.arange(index.size(1), device=index.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_batch(data, batch_size, block_size, device):
    starts = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    return x.to(device), y.to(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--block_size", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--log", default="char_gpt_log.csv")
    parser.add_argument("--checkpoint", default="char_gpt.pt")
    args = parser.parse_args()

    torch.manual_seed(1337)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = generate_text(20000, seed=0)
    characters = sorted(set(text))
    lookup = {character: i for i, character in enumerate(characters)}
    data = torch.tensor([lookup[character] for character in text])

    model = CharGPT(len(characters), args.width, args.heads, args.layers, args.block_size)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)

    with open(args.log, "w", newline="") as file:
        log = csv.writer(file)
        log.writerow(["step", "loss", "seconds"])
        start = time.time()
        for step in range(args.steps):
            x, y = get_batch(data, args.batch_size, args.block_size, device)
            _, loss = model(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            log.writerow([step, loss.item(), time.time() - start])
            if step % 50 == 0 or step == args.steps - 1:
                print(f"step {step} loss {loss.item():.4f}")
    torch.save(model.state_dict(), args.checkpoint)
    print(f"saved {os.path.abspath(args.checkpoint)}")


if __name__ == "__main__":
    main()
