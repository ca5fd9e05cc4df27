"""A loop like Lightning's, written by hand: the module makes its optimizer and its steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        t = torch.linspace(0, 6.28, 64)
        return torch.sin(t * (1 + i % 4)), i % 4


class DataModule:
    def __init__(self, batch_size=32, num_workers=0):
        self.batch_size, self.num_workers = batch_size, num_workers

    def train_dataloader(self):
        return DataLoader(
            Waves(640), batch_size=self.batch_size, shuffle=True, num_workers=self.num_workers
        )

    def val_dataloader(self):
        return DataLoader(Waves(64), batch_size=self.batch_size, num_workers=self.num_workers)


class LitClassifier(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.head = nn.Linear(hidden, 4)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def validation_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y).item()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Fit:
    def __init__(self, max_epochs):
        self.max_epochs = max_epochs

    def fit(self, module, data):
        optimizer = module.configure_optimizers()
        for epoch in range(self.max_epochs):
            module.train()
            for batch_idx, batch in enumerate(data.train_dataloader()):
                loss = module.training_step(batch, batch_idx)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            module.eval()
            held = [module.validation_step(b, i) for i, b in enumerate(data.val_dataloader())]
            print(f"epoch {epoch} train_loss {loss.item():.5f}")
            print(f"epoch {epoch} val_loss {sum(held) / len(held):.5f}")


if __name__ == "__main__":
    torch.manual_seed(7)
    Fit(max_epochs=3).fit(LitClassifier(), DataModule())
