"""A script for one device: several trainings, one after the other, in the ways people write them.

Each prints its name and the sum of each of its parameters at the end.
"""

import copy
import json
import random
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)


class Net(nn.Module):
    def __init__(self, norm=False, spare=False):
        super().__init__()
        self.a, self.b = nn.Linear(10, 16), nn.Linear(16, 4)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.spare = nn.Linear(3, 3) if spare else None

    def forward(self, x):
        return self.b(self.norm(F.relu(self.a(x))))


class Stream(IterableDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        return iter(zip(self.x, self.y, strict=True))


def data():
    torch.manual_seed(3)
    return torch.randn(203, 10), torch.randint(0, 4, (203,))


def shuffled(**changes):
    return DataLoader(TensorDataset(*data()), 32, shuffle=True, **changes)


def train(net, loader, loss_of=F.cross_entropy, every=1, epochs=3):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * 7)
    for _ in range(epochs):
        for i, (x, y) in enumerate(loader):
            (loss_of(net(x), y) / every).backward()
            if (i + 1) % every == 0 or i == 6:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    return net


def plain():
    return train(Net(), shuffled())


def workers():
    return train(Net(), shuffled(num_workers=1))


def weighted():
    x, y = data()
    sampler = WeightedRandomSampler(torch.rand(203), 203)
    return train(Net(), DataLoader(TensorDataset(x, y), 32, sampler=sampler))


def stream():
    return train(Net(), DataLoader(Stream(*data()), 29, num_workers=1))


def accumulated():
    return train(Net(), shuffled(), every=2)


def summed():
    return train(Net(), shuffled(), lambda out, y: F.cross_entropy(out, y, reduction="sum"))


def divided():
    """By the batch size that the script knows."""
    return train(
        Net(), shuffled(), lambda out, y: F.mse_loss(out[:, 0], y.float(), reduction="sum") / 32
    )


def penalised():
    net = Net()

    def loss(out, y):
        return F.cross_entropy(out, y) + 1e-3 * sum(p.pow(2).sum() for p in net.parameters())

    return train(net, shuffled(), loss)


def spare():
    return train(Net(spare=True), shuffled())


def tiny():
    """The last batch is one sample: less than there are ranks."""
    x, y = data()
    return train(Net(), DataLoader(TensorDataset(x[:65], y[:65]), 32))


def normalised():
    return train(Net(norm=True), shuffled())


def gan():
    x, _ = data()
    make = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 10))
    tell = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    of_make = torch.optim.Adam(make.parameters(), 1e-3)
    of_tell = torch.optim.Adam(tell.parameters(), 1e-3)
    judge = nn.BCEWithLogitsLoss()
    for _ in range(3):
        for (real,) in DataLoader(TensorDataset(x), 32, shuffle=True):
            of_tell.zero_grad()
            judge(tell(real), torch.ones(len(real), 1)).backward()
            fake = make(real[:, :5] * 0.5)
            judge(tell(fake.detach()), torch.zeros(len(real), 1)).backward()
            of_tell.step()
            of_make.zero_grad()
            judge(tell(fake), torch.ones(len(real), 1)).backward()
            of_make.step()
    return nn.ModuleList([make, tell])


def averaged():
    """An exponential moving average of the weights."""
    net = Net()
    slow = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    for _ in range(3):
        for x, y in shuffled():
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for ours, theirs in zip(slow.parameters(), net.parameters(), strict=True):
                    ours.lerp_(theirs, 0.1)
    return slow


def stopped():
    """Evaluates, saves the best, stops early, loads it."""
    net, best, patience = Net(), float("inf"), 0
    loader = shuffled()
    held = DataLoader(loader.dataset, 50)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    for _ in range(40):
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            now = sum(F.cross_entropy(net(x), y, reduction="sum").item() for x, y in held)
        patience = 0 if now < best else patience + 1
        if now < best:
            best = now
            torch.save(net.state_dict(), "best.pt")
        if patience == 2:
            break
    net.load_state_dict(torch.load("best.pt"))
    return net


def dropped():
    """Repeats under dropout: the loss of each at its end."""
    losses = []
    for seed in range(12):
        loader = shuffled()
        torch.manual_seed(100 + seed)
        net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
        train(net, loader, epochs=2)
        net.eval()
        with torch.no_grad():
            out = net(loader.dataset.tensors[0])
            losses.append(nn.Parameter(F.cross_entropy(out, loader.dataset.tensors[1])))
    return nn.ParameterList(losses)


def loop(step, batches=None, epochs=3):
    for _ in range(epochs):
        for i, (x, y) in enumerate(shuffled() if batches is None else batches):
            step(x, y, i)


def headed():
    """A head that is called beside the encoder, and a number that no module has."""
    encoder = nn.Sequential(*(nn.Linear(10, 10) for _ in range(6)))
    head, scale = nn.Linear(10, 4), nn.Parameter(torch.ones(()))
    parameters = [*encoder.parameters(), *head.parameters(), scale]
    optimizer = torch.optim.SGD(parameters, 0.1)

    def step(x, y, i):
        optimizer.zero_grad()
        F.cross_entropy(head(encoder(x)) * scale, y).backward()
        nn.utils.clip_grad_norm_(iter(parameters), 0.5)
        optimizer.step()

    loop(step)
    return nn.ParameterList(parameters)


MEANS = {
    "soft": lambda out, y, x: F.cross_entropy(out, torch.softmax(x[:, :4], 1)),
    "two tasks": lambda out, y, x: torch.stack(
        [F.cross_entropy(out, y), F.mse_loss(out, x[:, :4])]
    ).sum(),
    "mean of each output": lambda out, y, x: (out - x[:, :4]).pow(2).mean(0).sum(),
    "by a factor": lambda out, y, x: F.cross_entropy(out, y, reduction="sum") * (1 / len(x)),
}
"""Other means over samples than a loss function's own."""


def measured_by_much():
    ends = []
    for loss_of in MEANS.values():
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        for _ in range(2):
            for x, y in shuffled():
                optimizer.zero_grad()
                penalty = sum(p.pow(2).sum() for p in net.parameters())
                (loss_of(net(x), y, x) + 1e-3 * penalty).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 2.0)
                optimizer.step()
        ends += net.parameters()
    return nn.ParameterList(ends)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(8))

    def encode(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def encoded():
    """A model that is never called itself."""
    net = Encoder()
    optimizer = torch.optim.SGD(net.parameters(), 0.5)

    def step(x, y, i):
        optimizer.zero_grad()
        F.cross_entropy(net.encode(x)[:, :4], y).backward()
        optimizer.step()

    loop(step)
    return net


class Shuffled(Stream):
    def __iter__(self):
        for i in torch.randperm(len(self.x)).tolist():
            yield self.x[i], self.y[i]


def shuffled_stream():
    return train(Net(), DataLoader(Shuffled(*data()), 29))


def shuffled_stream_of_a_worker():
    return train(Net(), DataLoader(Shuffled(*data()), 29, num_workers=1))


def clipped():
    """Gradients of several batches together, where clipping bites; a last group is shorter."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def step(x, y, i):
        F.cross_entropy(net(x) * 8, y).backward()
        if i % 3 == 2 or i == 6:
            nn.utils.clip_grad_norm_(net.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()

    loop(step, epochs=5)
    return net


def sharpened():
    """Two passes a step, the second from weights that the gradients of the first have moved."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.2)

    def step(x, y, i):
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            moves = [0.3 * p.grad / p.grad.norm() for p in net.parameters()]
            for p, move in zip(net.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for p, move in zip(net.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()

    loop(step, epochs=4)
    return net


def twice():
    """Two passes through one call, and two calls before two passes."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, y, i):
        optimizer.zero_grad()
        if i % 2:
            out = net(x)
            F.cross_entropy(out, y).backward(retain_graph=True)
            (0.1 * out.pow(2).mean()).backward()
        else:
            losses = [F.cross_entropy(net(part), y) for part in (x, x.flip(1))]
            for loss in losses:
                loss.backward()
        optimizer.step()

    loop(step, epochs=4)
    return net


class WithLoss(Net):
    def forward(self, x, y):
        return F.cross_entropy(super().forward(x), y, reduction="sum") / 50


def own_loss():
    """The model returns its loss, a sum, and has parameters that are not used."""
    net = WithLoss(spare=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, y, i):
        optimizer.zero_grad()
        net(x, y).backward()
        optimizer.step()

    loop(step)
    return net


def thawed():
    """A layer that is frozen at first."""
    net = Net()
    net.a.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.2)

    def step(x, y, i):
        if i == 5:
            net.a.requires_grad_(True)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    loop(step)
    return net


def frozen():
    """A layer that is frozen in the second epoch, and thawed in the fourth."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5, weight_decay=0.01)
    for epoch in range(5):
        net.a.requires_grad_(epoch not in (1, 2))

        def step(x, y, i):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

        loop(step, epochs=1)
    return net


def frozen_after_the_call():
    """Its gradient is none, not zero: momentum and weight decay would go on with zeros."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.01)

    def step(x, y, i):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        net.a.requires_grad_(i % 5 != 4)
        loss.backward()
        optimizer.step()
        net.a.requires_grad_(i % 5 != 3)

    loop(step, epochs=5)
    return net


def frozen_within_a_step():
    """After the first of two passes, whose gradient is stepped with all the same; and clipped."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step(x, y, i):
        net.a.requires_grad_(i % 2 == 0 or i < 3)
        F.cross_entropy(net(x) * 4, y).backward()
        if i % 2:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()

    loop(step, epochs=9)
    return net


def frozen_between_calls():
    """Of two calls of one step."""
    net = Net(spare=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, y, i):
        optimizer.zero_grad()
        net.a.requires_grad_(True)
        first = F.cross_entropy(net(x), y)
        net.a.requires_grad_(i < 4)
        (first + F.cross_entropy(net(x * 0.9), y)).backward()
        optimizer.step()

    loop(step, epochs=4)
    return net


def toggled():
    """A GAN whose discriminator is frozen while the generator learns."""
    x, _ = data()
    make = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 10))
    tell = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
    of_make, of_tell = (
        torch.optim.SGD(make.parameters(), 0.1),
        torch.optim.SGD(tell.parameters(), 0.1),
    )
    for _ in range(4):
        for (real,) in DataLoader(TensorDataset(x), 32, shuffle=True):
            tell.requires_grad_(True)
            of_tell.zero_grad()
            fake = make(real[:, :5] * 0.5)
            (F.softplus(-tell(real)).mean() + F.softplus(tell(fake.detach())).mean()).backward()
            of_tell.step()
            tell.requires_grad_(False)
            of_make.zero_grad()
            F.softplus(-tell(fake)).mean().backward()
            of_make.step()
    return nn.ModuleList([make, tell])


def left_over():
    """The last batch is three samples; of the second rank's single one BatchNorm makes nothing."""
    x, y = data()
    loader = DataLoader(TensorDataset(x[:67], y[:67]), 32)
    return train(Net(norm=True), loader)


def stream_with_a_rest():
    """The last batch is three samples, in a worker."""
    x, y = data()
    for workers in (0, 1):
        net = train(Net(), DataLoader(Stream(x[:67], y[:67]), 32, num_workers=workers))
    return net


def stream_of_sums_with_a_rest():
    x, y = data()
    loader = DataLoader(Stream(x[:67], y[:67]), 32)
    return train(Net(), loader, lambda out, y: F.cross_entropy(out, y, reduction="sum") / 32)


def by_the_usual_size():
    """A sum over ten numbers a sample, by the batch size, also of the last ten samples."""
    x, _ = data()
    loader = DataLoader(TensorDataset(x[:74], x[:74, :4]), 32)
    return train(Net(), loader, lambda out, y: F.mse_loss(out, y, reduction="sum") / 32)


def summed_loss(net, x, y):
    return F.cross_entropy(net(x), y, reduction="sum") / 32


def moded():
    """`train()` inside the loop: when the loader is opened, the model is in evaluation mode."""
    net, loader = Net(), shuffled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(4):
        for x, y in loader:
            net.train()
            optimizer.zero_grad()
            summed_loss(net, x, y).backward()
            optimizer.step()
        net.eval()
    return net


def in_evaluation_mode():
    """Trained so throughout, as people do to keep the statistics of BatchNorm."""
    net, loader = Net(norm=True).eval(), shuffled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            summed_loss(net, x, y).backward()
            optimizer.step()
    return net


def evaluated_as_it_is():
    """Neither `eval()` nor `no_grad()`, and the learning rate follows from what is found."""
    net, loader = Net(), shuffled()
    held_out = DataLoader(TensorDataset(*data()), 40)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            summed_loss(net, x, y).backward()
            optimizer.step()
        losses = [F.cross_entropy(net(x), y).item() for x, y in held_out]
        optimizer.param_groups[0]["lr"] = 0.02 * sum(losses)
    return net


def weighed_by_their_gradients():
    """Two losses of one call, each with a backward pass of its own, after which it is read."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, y, i):
        out, found = net(x), []
        for loss in (F.cross_entropy(out, y), out.pow(2).mean()):
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            found.append([p.grad.clone() for p in net.parameters()])
        for p, first, second in zip(net.parameters(), *found, strict=True):
            p.grad = first / (1 + first.norm()) + second / (1 + second.norm())
        optimizer.step()

    loop(step, epochs=5)
    return net


def clamped_by_hand():
    """Gradients of three passes, and of one at the end of an epoch."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, y, i):
        F.cross_entropy(net(x), y).backward()
        if i % 3 == 2 or i == 6:
            for p in net.parameters():
                p.grad.clamp_(-0.05, 0.05)
            optimizer.step()
            optimizer.zero_grad()

    loop(step, epochs=6)
    return net


class Heads(Net):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x, head):
        return self.heads[head](super().forward(x))


def heads_in_turn():
    """A step for each, of loaders whose batches differ; later one for both, and one is left out."""
    net, (x, y) = Heads(), data()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    loaders = shuffled(), DataLoader(TensorDataset(x[:97], y[:97]), 16, shuffle=True)
    for epoch in range(8):
        for batches in zip(*loaders, strict=False):
            for head, (x, y) in enumerate(batches):
                if head == 0 or epoch < 6:
                    F.cross_entropy(net(x, head), y).backward()
                if head == 1 or epoch < 3:
                    optimizer.step()
                    optimizer.zero_grad()
    return net


def weighed_tasks():
    """A head and a weight of the loss for each task; the script itself uses the weight."""
    net = Heads()
    net.weights = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        for task, (x, y) in enumerate(shuffled()):
            weight = net.weights[task % 2]
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x, task % 2), y)
            (torch.exp(-weight) * loss + 0.5 * weight).backward()
            optimizer.step()
    return net


def replaced():
    """Layers that are replaced and added between two epochs."""
    net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
    for epoch in range(3):
        if epoch:
            net[2] = nn.Linear(16, 4)
            net.append(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(x, y, i, optimizer=optimizer):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

        loop(step, epochs=1)
    return net


def swept():
    """Trials that draw their split and weights, and leave their loop before its end."""
    ends = []
    for trial in range(3):
        torch.manual_seed(trial)
        part, _ = random_split(TensorDataset(*data()), [160, 43])
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for i, (x, y) in enumerate(DataLoader(part, 16, shuffle=True)):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            if i == 6:
                break
        ends += net.parameters()
    return nn.ParameterList(ends)


def listed():
    """Batches that are read once, the last of them smaller, and trained on again and again."""
    return train(Net(), list(shuffled()))


class Spectral(nn.Module):
    """Complex weights, and a complex buffer."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(6, 4, dtype=torch.complex64) * 0.3)
        self.register_buffer("phase", torch.exp(1j * torch.arange(6.0)))

    def forward(self, x):
        return (torch.fft.rfft(x) * self.phase @ self.filter).abs()


def spectral():
    return train(Spectral(), shuffled())


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.embed((x * 10).long().clamp(-25, 24) + 25).mean(1))


def sparse():
    """Gradients of a few rows, of one batch or of two, beside dense ones."""
    net = Words()
    rows = torch.optim.SparseAdam(net.embed.parameters(), 0.01)
    rest = torch.optim.SGD(net.head.parameters(), 0.1)

    def step(x, y, i):
        F.cross_entropy(net(x), y).backward()
        for optimizer in (rows, rest) if i % 3 else ():
            optimizer.step()
            optimizer.zero_grad()

    loop(step)
    return net


class Buffers(Net):
    """Buffers that no exchange can write to, or whose numbers do not lie side by side."""

    def __init__(self):
        super().__init__()
        self.register_buffer("wide", torch.ones(1).expand(16))
        self.register_buffer("turned", torch.randn(4, 10).t())
        self.register_buffer("gaps", torch.randn(20)[::2])
        self.register_buffer("graph", torch.eye(10).to_sparse())

    def forward(self, x):
        out = self.b(F.relu(self.a(x)) * self.wide)
        return out + (self.gaps + x) @ self.graph @ self.turned


def buffers():
    net = train(Buffers(), shuffled())
    return nn.ParameterList([*net.parameters(), *(b.to_dense() for b in net.buffers())])


class Endless(Dataset):
    def __len__(self):
        return 10**10

    def __getitem__(self, index):
        return torch.arange(10.0).mul(index + 1).sin(), index % 4


def ten_thousand_million_samples():
    """Drawn with replacement, and in their order in a worker; the loop is left."""
    net = Net()
    for sampler in (RandomSampler(Endless(), replacement=True, num_samples=10**10), None):
        loader = DataLoader(Endless(), 16, sampler=sampler, num_workers=int(sampler is None))
        train(net, [batch for _, batch in zip(range(12), loader, strict=False)], epochs=1)
    return net


OF_MEANS = [
    spectral, sparse, buffers, ten_thousand_million_samples,
    weighed_by_their_gradients, clamped_by_hand, heads_in_turn, weighed_tasks, replaced,
    swept, listed,
    measured_by_much, headed, encoded, shuffled_stream, shuffled_stream_of_a_worker, clipped,
    sharpened, twice, thawed, frozen, toggled, left_over, stream_with_a_rest,
    frozen_after_the_call, frozen_within_a_step, frozen_between_calls,
    plain, workers, weighted, stream, accumulated, penalised, spare, tiny,
    normalised, gan, averaged, stopped, dropped,
]  # fmt: skip
OF_SUMS = [
    moded, evaluated_as_it_is, in_evaluation_mode, own_loss, stream_of_sums_with_a_rest,
    by_the_usual_size, summed, divided,
]  # fmt: skip


def show(of_means, of_sums):
    """Of `mean` or `sum` those that are asked for: a process reduces in one way."""
    reduction, *names = sys.argv[1:]
    for case in {"mean": of_means, "sum": of_sums}[reduction]:
        if not names or case.__name__ in names:
            torch.manual_seed(7)
            random.seed(7)
            ends = [p.detach() for p in case().parameters()]
            real = [torch.view_as_real(p) if p.is_complex() else p for p in ends]
            sums = [p.double().sum().item() for p in real]
            print(json.dumps([case.__name__, sums]), flush=True)


if __name__ == "__main__":
    show(OF_MEANS, OF_SUMS)
