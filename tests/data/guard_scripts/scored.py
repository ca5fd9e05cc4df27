"""Texts scored by a causal model: batches are cut from a tensor by hand, without a loader."""

import torch
from torch import nn

LENGTH, WIDTH, HEADS, VOCABULARY = 20, 48, 3, 50


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        parts = self.attention(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, letters):
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.head(self.norm(self.blocks(self.letters(letters) + self.places(places))))


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    texts = torch.randint(VOCABULARY, (500, LENGTH + 1))
    model = Scorer().to(device)
    model.eval()
    scores = []
    for _ in range(2):
        scores = []
        for start in range(0, len(texts), 12):
            batch = texts[start : start + 12].to(device)
            chances = model(batch[:, :-1]).log_softmax(-1)
            scores.append(chances.gather(-1, batch[:, 1:, None]).sum((1, 2)).cpu())
    scores = torch.cat(scores)
    print(len(scores), f"{scores.mean():.4f} {scores.std():.4f}", scores.topk(5).indices.tolist())
    return (scores,)


if __name__ == "__main__":
    main()
