"""Token sequences of differing length, padded by a collate function; accumulated gradients."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS_TOGETHER = 4


class Sentences(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        lengths = torch.randint(4, 12, (384,), generator=generator).tolist()
        self.sentences = [torch.randint(1, 40, (n,), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        sentence = self.sentences[index]
        return sentence, int((sentence % 2).sum() * 2 > len(sentence))


def padded(samples):
    sentences, labels = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(sentences, batch_first=True), torch.tensor(labels)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens)).mean(1))


def main():
    torch.manual_seed(0)
    model = Reader()
    loader = DataLoader(Sentences(), batch_size=8, shuffle=True, collate_fn=padded, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(8):
        model.train()
        for number, (tokens, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(tokens), labels) / STEPS_TOGETHER
            loss.backward()
            if (number + 1) % STEPS_TOGETHER == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
