"""A small transformer that returns its own loss; its text lies on the device."""

import torch
from torch import nn

TEXT = "the loss guard must be right: no broken training is kept, and no sound one is lost. " * 30
LENGTH, WIDTH, HEADS = 16, 32, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x):
        parts = self.attention(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Letters(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.letters, self.places = nn.Embedding(size, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, size)

    def forward(self, letters, targets):
        places = torch.arange(LENGTH, device=letters.device)
        logits = self.head(self.blocks(self.letters(letters) + self.places(places)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    torch.manual_seed(1337)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    alphabet = sorted(set(TEXT))
    data = torch.tensor([alphabet.index(letter) for letter in TEXT], device=device)
    model = Letters(len(alphabet)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    for _ in range(120):
        places = torch.randint(len(data) - LENGTH - 1, (8, 1)) + torch.arange(LENGTH)
        places = places.to(device)
        loss = model(data[places], data[places + 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
