"""A GAN: two models, two optimizers, and two loaders whose arguments stand by position."""

from itertools import cycle

import torch
from torch import nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
latent_dim, n_epochs, b1, b2, lr = 16, 2, 0.5, 0.999, 2e-4


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(latent_dim, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, x):
        return torch.sigmoid(self.model(x))


def main():
    adversarial_loss = nn.BCELoss()
    generator, discriminator = Generator(), Discriminator()
    real_data = TensorDataset(torch.randn(640, 32) * 0.5 + 1)
    noise_data = TensorDataset(torch.randn(640, latent_dim))
    dataloader = DataLoader(real_data, 32, True, None, None, 0)
    noise_loader = DataLoader(noise_data, 32, True, num_workers=0, drop_last=True)
    optimizer_G = Adam(generator.parameters(), lr=lr, betas=(b1, b2))
    optimizer_D = Adam(discriminator.parameters(), lr=lr, betas=(b1, b2))
    noise = cycle(noise_loader)
    for epoch in range(n_epochs):
        for i, (real_imgs,) in enumerate(dataloader):
            valid = torch.ones(real_imgs.size(0), 1)
            fake = torch.zeros(real_imgs.size(0), 1)
            optimizer_G.zero_grad()
            (z,) = next(noise)
            gen_imgs = generator(z)
            g_loss = adversarial_loss(discriminator(gen_imgs), valid)
            g_loss.backward()
            optimizer_G.step()
            optimizer_D.zero_grad()
            real_loss = adversarial_loss(discriminator(real_imgs), valid)
            fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)
            d_loss = (real_loss + fake_loss) / 2
            d_loss.backward()
            optimizer_D.step()
            if i % 5 == 0:
                print(f"[Epoch {epoch}] [Batch {i}] D loss: {d_loss:.5f} G loss: {g_loss:.5f}")


if __name__ == "__main__":
    main()
