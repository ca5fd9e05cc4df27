"""Train a Llama of 12 layers on synthetic tokens, in float32, attention written by hand."""

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 8192, 768, 12, 12, 512, 16


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        scores = (q @ k.transpose(-2, -1)) / (width // HEADS) ** 0.5
        future = torch.triu(torch.ones(length, length, dtype=torch.bool, device=x.device), 1)
        y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        hidden = 8 * WIDTH // 3
        self.gate, self.up = (nn.Linear(WIDTH, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = RMSNorm(WIDTH), Attention()
        self.norm2, self.mlp = RMSNorm(WIDTH), SwiGLU()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.out = RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        head = WIDTH // HEADS
        angles = torch.outer(torch.arange(LENGTH), 1e4 ** (-torch.arange(0, head, 2) / head))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.out(self.norm(x))


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = torch.randint(0, WORDS, (2_000_000,))
    model = Llama().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    for step in range(3000):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH,))
        pieces = torch.stack([text[s : s + LENGTH + 1] for s in starts]).to(device)
        loss = F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
