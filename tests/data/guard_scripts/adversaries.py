"""A generator and a discriminator, each with its optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    real = torch.randn(512, 6) @ torch.randn(6, 6) + 1
    loader = DataLoader(TensorDataset(real), batch_size=32, shuffle=True)
    generator = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 6))
    critic = nn.Sequential(nn.Linear(6, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judge = nn.functional.binary_cross_entropy_with_logits
    for _ in range(8):
        for (data,) in loader:
            ones, zeros = torch.ones(len(data), 1), torch.zeros(len(data), 1)
            fake = generator(torch.randn(len(data), 4))
            of_critic.zero_grad()
            loss = judge(critic(data), ones) + judge(critic(fake.detach()), zeros)
            loss.backward()
            of_critic.step()
            of_generator.zero_grad()
            judge(critic(fake), ones).backward()
            of_generator.step()


if __name__ == "__main__":
    main()
