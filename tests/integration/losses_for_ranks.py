"""Trainings whose losses come to the model's weights by ways of their own.

For one device; printed is, of each, the sum of every parameter at its end.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from trainings_for_ranks import Net, data, loop, show

SUM = {"reduction": "sum"}


def train(net, loss, rate=0.05, loader=None, epochs=3, every=1):
    optimizer = torch.optim.SGD(net.parameters(), rate)

    def step(x, y, i):
        loss(net, x, y).backward()
        if (i + 1) % every == 0 or i == 6:
            optimizer.step()
            optimizer.zero_grad()

    loop(step, loader, epochs)
    return net


def train_by_two(net, first, second, rate=0.002):
    """A backward pass of each loss in a step."""
    optimizer = torch.optim.SGD(net.parameters(), rate)

    def step(x, y, i):
        optimizer.zero_grad()
        first(net, x, y).backward()
        second(net, x, y).backward()
        optimizer.step()

    loop(step)
    return net


def summed(net, x, y):
    return F.cross_entropy(net(x), y, **SUM)


class Distribution(Net):
    def forward(self, x):
        return torch.distributions.Categorical(logits=super().forward(x))


def likelihood():
    return train(Distribution(), lambda net, x, y: -net(x).log_prob(y).sum() / 32)


def vectorised():
    return train(Net(), lambda net, x, y: F.cross_entropy(torch.vmap(net)(x), y, **SUM), rate=0.002)


def checkpointed():
    def loss(net, x, y):
        out = checkpoint(net, x.requires_grad_(), use_reentrant=True)
        return F.cross_entropy(out, y, **SUM)

    return train(Net(), loss, rate=0.002, every=2)


class Encoder(Net):
    """`spread`: a term of the loss that the last call left."""

    def forward(self, x):
        out = super().forward(x)
        self.spread = out.pow(2).sum()
        return out


class Decoder(Net):
    def __init__(self):
        super().__init__()
        self.back = nn.Linear(16, 10)

    def decode(self, x):
        return self.back(F.relu(self.a(x)))


def by_a_method_with_weights_of_its_own():
    return train_by_two(Decoder(), summed, lambda net, x, y: F.mse_loss(net.decode(x), x, **SUM))


def left_as_an_attribute():
    def loss(net, x, y):
        return summed(net, x, y) + 0.1 * net.spread

    return train(Encoder(), loss, rate=0.002)


class Autoencoder(nn.Module):
    """It returns its loss, of two sums."""

    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(10, 4), nn.Linear(4, 10)

    def forward(self, x):
        hidden = self.there(x)
        error = F.mse_loss(self.back(hidden), x, reduction="sum")
        return error + 0.1 * hidden.pow(2).sum() / 32


def own_loss_divided():
    return train(Autoencoder(), lambda net, x, y: net(x) / 32, rate=0.02)


class Squeezed(nn.Linear):
    def forward(self, x):
        return super().forward(x).squeeze(1)


def view_in_place():
    def loss(net, x, y):
        return F.mse_loss(net(x).mul_(2), y.float(), **SUM)

    return train(Squeezed(10, 1), loss, rate=0.005)


def gradient_penalty():
    def loss(net, x, y):
        out = net(x.requires_grad_())
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.cross_entropy(out, y) + 0.1 * (slope.norm(dim=1) - 1).pow(2).mean()

    return train(Net(), loss)


def penalised_deviation():
    """From what the weights were, and from orthogonality: no matter of samples."""
    net = Net()
    before = [p.detach().clone() for p in net.parameters()]

    def loss(net, x, y):
        moved = sum((p - b).pow(2).sum() for p, b in zip(net.parameters(), before, strict=True))
        weight = next(net.parameters())
        skew = (weight.T @ weight - torch.eye(10)).pow(2).sum()
        return F.cross_entropy(net(x), y) + 0.1 * moved + 0.001 * skew

    return train(net, loss)


class Ahead:
    """A loader that has the next batch at hand."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        batches = iter(self.loader)
        following = next(batches, None)
        while following is not None:
            batch, following = following, next(batches, None)
            yield batch


def one_ahead():
    x, y = data()
    many = TensorDataset(x.repeat(4, 1)[:651], y.repeat(4)[:651])
    loader = Ahead(DataLoader(many, 32, shuffle=True))
    net = Net()
    for _ in range(3):
        train(net, lambda net, x, y: F.cross_entropy(net(x), y), loader=loader, epochs=2)
    return net


def penalised_apart():
    """By a backward pass of its own."""
    return train_by_two(
        Net(),
        lambda net, x, y: F.cross_entropy(net(x), y),
        lambda net, x, y: 0.01 * sum(p.pow(2).sum() for p in net.parameters()),
        rate=0.1,
    )


def added_up():
    """In a loop over samples; and a mean times the number of samples."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.002)

    def step(x, y, i):
        optimizer.zero_grad()
        out = net(x)
        if i % 2:
            loss = sum(F.cross_entropy(one, label) for one, label in zip(out, y, strict=True))
        else:
            loss = F.cross_entropy(out, y) * x.size(0)
        loss.backward()
        optimizer.step()

    loop(step)
    return net


def of_a_function():
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out):
            ctx.save_for_backward(out)
            return out.pow(2).sum()

        @staticmethod
        def backward(ctx, gradient):
            (out,) = ctx.saved_tensors
            return 2 * out * gradient

    return train(Net(), lambda net, x, y: Own.apply(net(x)) / 8, rate=0.01)


def contracted():
    return train(Net(), lambda net, x, y: torch.einsum("ij,ij->", net(x), net(x)) / 11, rate=0.01)


OF_MEANS = [gradient_penalty, penalised_apart, penalised_deviation, one_ahead]
OF_SUMS = [
    likelihood, vectorised, checkpointed, by_a_method_with_weights_of_its_own,
    left_as_an_attribute, own_loss_divided, view_in_place, added_up, of_a_function, contracted,
]  # fmt: skip
show(OF_MEANS, OF_SUMS)
