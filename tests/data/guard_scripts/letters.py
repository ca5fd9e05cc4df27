"""A character model whose batches are cut from one tensor by hand; tied to no loader."""

import torch
from torch import nn

TEXT = "the loss guard must be right: no broken training is kept, and no sound one is lost. " * 30


class Letters(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding = nn.Embedding(size, 24)
        self.recurrent = nn.GRU(24, 32, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(32, size)

    def forward(self, letters, targets):
        hidden, _ = self.recurrent(self.embedding(letters))
        logits = self.head(self.dropout(hidden))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    torch.manual_seed(1337)
    alphabet = sorted(set(TEXT))
    data = torch.tensor([alphabet.index(letter) for letter in TEXT])
    model = Letters(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    for _ in range(120):
        start = torch.randint(len(data) - 17, (12,))
        x = torch.stack([data[i : i + 16] for i in start])
        y = torch.stack([data[i + 1 : i + 17] for i in start])
        _, loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
