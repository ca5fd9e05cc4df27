"""Train a small GPT to spell words, character by character, with a trainer of one's own."""

import argparse
import math
import random
import time
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

ALPHABET = "abcdefghijklmnopqrstuvwxyz .\n"


def generate_text(words, seed=0):
    rng = random.Random(seed)
    lexicon = ["".join(rng.choices(ALPHABET[:26], k=rng.randint(2, 9))) for _ in range(400)]
    endings = (" ", " ", " ", " ", " ", " ", " ", ". ", ".\n")
    return "".join(rng.choice(lexicon) + rng.choice(endings) for _ in range(words))


class CharDataset(Dataset):
    """Pieces of the text, and the same pieces one character further on."""

    def __init__(self, text, length):
        lookup = {character: i for i, character in enumerate(ALPHABET)}
        self.data = torch.tensor([lookup[character] for character in text])
        self.length = length

    def __len__(self):
        return len(self.data) - self.length

    def __getitem__(self, index):
        piece = self.data[index : index + self.length + 1]
        return piece[:-1], piece[1:]


class NewGELU(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class CausalAttention(nn.Module):
    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.attention_dropout = nn.Dropout(dropout)
        self.out_dropout = nn.Dropout(dropout)
        mask = torch.tril(torch.ones(length, length)).view(1, 1, length, length)
        self.register_buffer("mask", mask)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.query_key_value(x).split(width, dim=2)
        q = q.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        k = k.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        v = v.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        weights = self.attention_dropout(F.softmax(scores, dim=-1))
        y = (weights @ v).transpose(1, 2).contiguous().view(batch, length, width)
        return self.out_dropout(self.out(y))


class Block(nn.Module):
    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, length, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = NewGELU()
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, vocabulary, length, layers, heads, width, dropout):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, length, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._init_weights)
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "down.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers))

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def parameter_groups(self, weight_decay):
        """Matrices of linear layers decay; biases, norms and embeddings do not."""
        decayed, spared = [], []
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                decays = isinstance(module, nn.Linear) and name == "weight"
                (decayed if decays else spared).append(parameter)
        return [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": spared, "weight_decay": 0.0},
        ]

    def forward(self, tokens, targets=None):
        positions = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


class Trainer:
    def __init__(self, args, model, dataset):
        self.args = args
        self.dataset = dataset
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.optimizer = torch.optim.AdamW(
            model.parameter_groups(args.weight_decay), lr=args.lr, betas=(0.9, 0.95)
        )
        self.callbacks = defaultdict(list)
        self.step = 0
        self.step_seconds = 0.0
        self.step_began = time.time()

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def trigger(self, event):
        for callback in self.callbacks[event]:
            callback(self)

    def run(self):
        loader = DataLoader(
            self.dataset,
            sampler=RandomSampler(self.dataset, replacement=True, num_samples=int(1e10)),
            batch_size=self.args.batch_size,
            num_workers=0,
        )
        self.model.train()
        batches = iter(loader)
        while self.step < self.args.steps:
            x, y = [tensor.to(self.device) for tensor in next(batches)]
            _, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
            self.optimizer.step()
            self.trigger("batch_end")
            self.step += 1
            now = time.time()
            self.step_seconds, self.step_began = now - self.step_began, now


def main():
    parser = argparse.ArgumentParser()
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
    args = parser.parse_args()
    torch.manual_seed(3407)
    dataset = CharDataset(generate_text(args.words), args.length)
    model = GPT(len(ALPHABET), args.length, args.layers, args.heads, args.width, args.dropout)
    trainer = Trainer(args, model, dataset)
    losses = []

    def remember(trainer):
        losses.append(trainer.loss.item())

    def report(trainer):
        if trainer.step % 100 == 0:
            mean = sum(losses[-100:]) / len(losses[-100:])
            took = 1000 * trainer.step_seconds
            print(f"step {trainer.step} loss {mean:.4f} {took:.1f} ms", flush=True)

    trainer.add_callback("batch_end", remember)
    trainer.add_callback("batch_end", report)
    trainer.run()


if __name__ == "__main__":
    main()
