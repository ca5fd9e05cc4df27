"""Ways in which people feed training loops, and the small training that is fed."""

import queue
import resource
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

loss_of = nn.functional.cross_entropy


def data(rows=96):
    return TensorDataset(torch.randn(rows, 8), torch.randint(0, 2, (rows,)))


def net():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def train(model, loader, optimizer, epochs=1):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def two_loaders():
    model = net()
    optimizer = sgd(model)
    labelled, unlabelled = DataLoader(data(), batch_size=8), DataLoader(data(192), batch_size=16)
    for (x, y), (u, _) in zip(labelled, unlabelled, strict=True):
        optimizer.zero_grad()
        (loss_of(model(x), y) + model(u).square().mean()).backward()
        optimizer.step()


def rebuilt_each_epoch():
    model = net()
    optimizer = sgd(model)
    for _ in range(3):
        train(model, DataLoader(data(32), batch_size=8), optimizer)


def left_early():
    model = net()
    optimizer = sgd(model)
    loader = DataLoader(data(), batch_size=8, num_workers=1, persistent_workers=True)
    for _ in range(3):
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            if number == 3:
                break


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.randn(8), 1)] * 96)

    def __len__(self):
        raise RuntimeError("nobody may ask a stream for its length")


def iterable():
    model = net()
    train(model, DataLoader(Stream(), batch_size=8), sgd(model))


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index >= 12:
            raise IndexError
        return torch.randn(8, 8), torch.randint(0, 2, (8,))


def no_automatic_batches():
    model = net()
    train(model, DataLoader(Batches(), batch_size=None), sgd(model))


class Endless(torch.utils.data.Dataset):
    def __len__(self):
        return 10**10

    def __getitem__(self, index):
        return torch.full((8,), index / 1e10), index % 2


def ten_thousand_million_samples():
    """Drawn with replacement; a list of their indices would not fit the memory left here."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**31,) * 2)
    model, every = net(), Endless()
    draw = RandomSampler(every, replacement=True, num_samples=len(every))
    loader = DataLoader(every, batch_size=8, sampler=draw)
    optimizer = sgd(model)
    for _, (x, y) in zip(range(12), loader, strict=False):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()


class Loader(DataLoader):
    def __init__(self, dataset, size, seed=0):
        super().__init__(dataset, size, shuffle=True)

    def __iter__(self):
        for batch in super().__iter__():
            yield tuple(batch)

    def __eq__(self, other):
        return self is other


def loader_subclass():
    model = net()
    train(model, Loader(data(), size=8), sgd(model))


class Sampler:
    def __iter__(self):
        return (torch.arange(i, i + 8) for i in range(0, 96, 8))


def own_batch_sampler():
    model = net()
    train(model, DataLoader(data(), batch_sampler=Sampler()), sgd(model))


def library_builds_twice():
    """As accelerate prepares loaders."""
    given = DataLoader(data(), batch_size=8)
    again = DataLoader(
        given.dataset, batch_size=None, sampler=given.batch_sampler, collate_fn=given.collate_fn
    )
    fetched = DataLoader(data(), batch_sampler=given.batch_sampler, num_workers=0)
    assert len(again) == 12
    model = net()
    train(model, fetched, sgd(model))


def reads_one_batch_ahead():
    """As accelerate hands out batches, to know the last one; it accumulates two of them."""
    model = net()
    optimizer = sgd(model)
    batches = iter(DataLoader(data(), batch_size=8))
    following = next(batches, None)
    number = 0
    while (batch := following) is not None:
        following = next(batches, None)
        loss_of(model(batch[0]), batch[1]).backward()
        number += 1
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


def thread_reads_ahead():
    model = net()
    optimizer = sgd(model)
    batches = queue.Queue(2)

    def read():
        for batch in DataLoader(data(), batch_size=8):
            time.sleep(0.005)
            batches.put(batch)
        batches.put(None)

    threading.Thread(target=read).start()
    while (batch := batches.get()) is not None:
        optimizer.zero_grad()
        loss_of(model(batch[0]), batch[1]).backward()
        optimizer.step()


SHAPES = [
    two_loaders,
    rebuilt_each_epoch,
    left_early,
    iterable,
    no_automatic_batches,
    ten_thousand_million_samples,
    loader_subclass,
    own_batch_sampler,
    library_builds_twice,
    reads_one_batch_ahead,
    thread_reads_ahead,
]
