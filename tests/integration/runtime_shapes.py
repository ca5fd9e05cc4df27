"""Ways in which people write training loops; each runs in a forked child of one launch.

`shapes.json` maps the name of each, and of each way to feed one, to the process that ran it. Every
shape takes 12 steps over 96 samples in batches of 8 unless its name says otherwise.
"""

import copy
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import torch
from runtime_feeds import SHAPES as FEEDS  # beside this script: nobody imports it as a package
from runtime_feeds import data, loss_of, net, sgd, train
from torch import nn
from torch.utils.data import DataLoader


def plain():
    model = net()
    train(model, DataLoader(data(), batch_size=8, shuffle=True), sgd(model))


def gan():
    real, fake = net(), nn.Linear(4, 8)
    of_real, of_fake = torch.optim.Adam(real.parameters()), torch.optim.Adam(fake.parameters())
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=8)):
        made = fake(torch.randn(8, 4))
        of_real.zero_grad()
        (loss_of(real(x), y) + loss_of(real(made.detach()), 1 - y)).backward()
        of_real.step()
        if number % 2:
            of_fake.zero_grad()
            loss_of(real(made), y).backward()
            of_fake.step()


def twins():
    first, second = net(), net()
    optimizers = sgd(first), sgd(second)
    for x, y in DataLoader(data(), batch_size=8):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()


class Doubling(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

    def __eq__(self, other):
        return self is other


def subclass():
    model = net()
    train(model, DataLoader(data(), batch_size=8), Doubling(model.parameters(), lr=0.1))


class Wrapper:
    def __init__(self, inner):
        self.inner = inner

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()


def wrapper():
    model = net()
    train(model, DataLoader(data(), batch_size=8), Wrapper(sgd(model)))


def accumulation_3_steps():
    model = net()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=8)):
        (loss_of(model(x), y) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for x, y in DataLoader(data(), batch_size=8):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


class SAM(torch.optim.Optimizer):
    """As the public one: its own `step` is never called, that of the optimizer in it is."""

    def __init__(self, parameters, base, **options):
        super().__init__(parameters, options)
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        self.before = [p.clone() for group in self.param_groups for p in group["params"]]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(0.05 * p.grad)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        moved = (p for group in self.param_groups for p in group["params"])
        for p, before in zip(moved, self.before, strict=True):
            p.copy_(before)
        self.base.step()
        self.zero_grad()


def sharpness_aware():
    model = net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    for x, y in DataLoader(data(), batch_size=8):
        loss_of(model(x), y).backward()
        optimizer.first_step()
        loss_of(model(x), y).backward()
        optimizer.second_step()


def two_steps_a_batch_24_steps():
    model = net()
    optimizer = sgd(model)
    for x, y in DataLoader(data(), batch_size=8):
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()


def by_hand_with_backward():
    model = net()
    for x, y in DataLoader(data(), batch_size=8):
        loss_of(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None


def by_hand_with_grad():
    model = net()
    for x, y in DataLoader(data(), batch_size=8):
        grads = torch.autograd.grad(loss_of(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= 0.1 * g


class Stubborn(torch.optim.SGD):
    """Nobody calls its step."""


def optimizer_never_steps():
    model = net()
    optimizer = Stubborn(model.parameters(), lr=0.1)
    for x, y in DataLoader(data(), batch_size=8):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad


def inference():
    model = net().eval()
    with torch.no_grad():
        for x, _ in DataLoader(data(8 * 12), batch_size=8):
            model(x)


def inference_fetched_with_gradients():
    model = net().eval()
    for x, _ in DataLoader(data(8 * 12), batch_size=8):
        with torch.no_grad():
            model(x)


def inference_of_several_calls_a_batch():
    model = net().eval()
    with torch.no_grad():
        for x, _ in DataLoader(data(8 * 2), batch_size=8):
            for _ in range(6):
                model(x)


def inference_of_two_calls_a_batch():
    model = net().eval()
    with torch.no_grad():
        model(torch.zeros(8, 8))
        for x, _ in DataLoader(data(), batch_size=8):
            model(x)
            model(x)


def inference_after_statistics():
    model = net().eval()
    with torch.no_grad():
        sum(x.mean() for x, _ in DataLoader(data(8 * 20), batch_size=8))
        for x, _ in DataLoader(data(8 * 12), batch_size=8):
            model(x)


def inference_by_two_models():
    first, second = net().eval(), nn.Linear(8, 8).eval()
    with torch.no_grad():
        for _ in range(6):
            first(torch.randn(8, 8))
            second(torch.randn(8, 8))


def statistics_and_evaluation_first():
    model = net()
    with torch.no_grad():
        sum(x.mean() for x, _ in DataLoader(data(8 * 20), batch_size=8))
    evaluate(model, DataLoader(data(8 * 9), batch_size=8), grad=False)
    train(model, DataLoader(data(), batch_size=8), sgd(model))


def evaluate(model, loader, grad):
    model.eval()
    with torch.set_grad_enabled(grad):
        for x, y in loader:
            loss_of(model(x), y)
    model.train()


def evaluation(grad):
    model = net()
    loader, test = DataLoader(data(48), batch_size=8), DataLoader(data(50), batch_size=5)
    evaluate(model, test, grad)
    optimizer = sgd(model)
    evaluate(model, test, grad)
    for _ in range(2):
        train(model, loader, optimizer)
        evaluate(model, test, grad)


def evaluation_without_gradients():
    evaluation(False)


def evaluation_with_gradients():
    evaluation(True)


def evaluation_of_the_training_data_with_gradients():
    model = net()
    optimizer = sgd(model)
    loader = DataLoader(data(48), batch_size=8)
    for _ in range(2):
        train(model, loader, optimizer)
        evaluate(model, loader, True)


def never_back_in_training_mode():
    model = net()
    optimizer = sgd(model)
    loader = DataLoader(data(48), batch_size=8)
    for _ in range(2):
        train(model, loader, optimizer)
        model.eval()


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids=None, labels=None, nested=None):
        if nested is not None:
            input_ids, labels = nested["inputs"]["ids"], nested["labels"]
        logits = self.head(self.embed(input_ids))
        return {"loss": loss_of(logits.flatten(0, 1), labels.flatten())}


def manual_tokens():
    model = Tokens()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(12):
        ids = torch.randint(0, 50, (8, 16))
        model(input_ids=ids, labels=ids)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


def nested_inputs():
    model = Tokens()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(12):
        ids = torch.randint(0, 50, (8, 16))
        model(nested={"inputs": {"ids": ids}, "labels": ids})["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


def step_of(optimizer, *losses):
    """One step, with a backward pass for each loss."""
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.step()


def actor_and_critic():
    actor, critic = net(), net()
    both = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
    for _ in range(12):
        seen = torch.randn(8, 8)
        step_of(both, actor(seen).mean() + critic(seen).mean())


def actor_and_critic_apart():
    actor, critic = net(), net()
    both = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
    for _ in range(12):
        seen = torch.randn(8, 8)
        step_of(both, actor(seen).mean(), critic(seen).mean())


def actor_and_critic_in_turn():
    actor, critic = net(), net()
    optimizers = sgd(actor), sgd(critic)
    for _ in range(12):
        seen = torch.randn(8, 8)
        step_of(optimizers[0], actor(seen).mean())
        step_of(optimizers[1], critic(seen).mean())


class Parts(nn.Module):
    """Its own forward is never called."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1)


def parts_called_alone():
    model = Parts()
    optimizer = sgd(model)
    for _ in range(12):
        step_of(optimizer, model.second(model.first(torch.randn(8, 4, 5))).mean())


def one_observation_at_a_time():
    """An agent acts on vectors, and learns from eight of them."""
    model = net()
    optimizer = sgd(model)
    for _ in range(12):
        step_of(optimizer, sum(model(torch.randn(8)).square().sum() for _ in range(8)))


def micro_batches_without_a_loader_3_steps():
    actor, critic = net(), net()
    both = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
    for _ in range(3):
        several = [torch.randn(8, 8) for _ in range(4)]
        step_of(both, *(actor(seen).mean() + critic(seen).mean() for seen in several))


def two_batches_in_one_pass_6_steps():
    model = net()
    optimizer = sgd(model)
    for _ in range(6):
        step_of(optimizer, model(torch.randn(8, 8)).mean() + model(torch.randn(8, 8)).mean())


def real_and_generated_6_steps():
    generator, judge = nn.Linear(4, 8), net()
    of_generator, of_judge = sgd(generator), sgd(judge)
    for _ in range(6):
        made = generator(torch.randn(8, 4))
        step_of(of_judge, judge(torch.randn(8, 8)).mean(), -judge(made.detach()).mean())
        step_of(of_generator, judge(made).mean())


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.module = inner

    def __call__(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().__call__(x)

    def forward(self, x):
        return self.module(x)


def nested_roots_called_twice():
    inner = net()
    model = Outer(inner)
    optimizer = sgd(model)
    for x, y in DataLoader(data(), batch_size=8):
        optimizer.zero_grad()
        (loss_of(model(x), y) + loss_of(model(x + 1), y)).backward()
        optimizer.step()
    assert model.calls == 24, model.calls


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))

    def encode(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def forward_never_called():
    model = Graph()
    optimizer = sgd(model)
    for x, y in DataLoader(data(), batch_size=8):
        optimizer.zero_grad()
        loss_of(model.encode(x), y).backward()
        optimizer.step()


def lazy_layers():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))
    model(torch.randn(2, 8))
    train(model, DataLoader(data(), batch_size=8), sgd(model))


def scaler():
    model = net()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in DataLoader(data(), batch_size=8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def checkpointing():
    first, last = nn.Linear(8, 8), nn.Linear(8, 2)
    model = nn.ModuleList([first, last])
    optimizer = sgd(model)
    for x, y in DataLoader(data(), batch_size=8):
        optimizer.zero_grad()
        x.requires_grad_(True)
        hidden = torch.utils.checkpoint.checkpoint(first, x, use_reentrant=True)
        loss_of(last(hidden), y).backward()
        optimizer.step()


def step_that_raises():
    model = net()
    optimizer = sgd(model)

    def bad():
        raise ValueError

    for x, y in DataLoader(data(), batch_size=8):
        optimizer.zero_grad()
        try:
            optimizer.step(bad)
        except ValueError:
            pass
        loss_of(model(x), y).backward()
        optimizer.step()


def a_model_after_the_other_24_steps():
    """Cross-validation: the second fold's model is a new root."""
    for _ in range(2):
        model = net()
        train(model, DataLoader(data(), batch_size=8), sgd(model))


def a_sweep_24_steps():
    """The next optimizer is built while the one before still lives."""
    for rate in (0.1, 0.01):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        train(model, DataLoader(data(), batch_size=8), optimizer)


def meta_learning():
    """A short training of a copy for each of two tasks, before each step of the model."""
    model = net()
    outer = sgd(model)
    for x, y in DataLoader(data(), batch_size=8):
        for _ in range(2):
            task = copy.deepcopy(model)
            inner = sgd(task)
            for _ in range(3):
                inner.zero_grad()
                loss_of(task(x), y).backward()
                inner.step()
        outer.zero_grad()
        loss_of(model(x), y).backward()
        outer.step()


def trains_in_a_thread():
    thread = threading.Thread(target=plain)
    thread.start()
    thread.join()


def moving_average():
    model = net()
    average = copy.deepcopy(model)
    optimizer = sgd(model)
    for x, y in DataLoader(data(), batch_size=8):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(average.parameters(), model.parameters(), strict=True):
                p.lerp_(q, 0.1)
        late = copy.deepcopy(model)
        late[0].weight.data.zero_()
        assert not torch.equal(late(x), model(x)), "a copy runs its own weights"


def closes_every_descriptor():
    DataLoader(data(), batch_size=8)  # so the record is open
    os.closerange(3, 256)
    files = [Path(f"mine-{number}").open("w+") for number in range(32)]  # noqa: SIM115
    plain()
    assert not any(file.read() for file in files)


def leaves_at_once():
    model = net()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=8)):
        if number == 7:
            time.sleep(0.6)  # longer than the record may lag behind
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
    os._exit(0)


def no_training():
    DataLoader(data(), batch_size=8)


SHAPES = [
    x
    for x in list(globals().values())
    if callable(x)
    and getattr(x, "__module__", "") == __name__
    and not isinstance(x, type)
    and x.__name__ not in ("evaluate", "evaluation", "step_of")
]

if __name__ == "__main__":
    import torch._dynamo  # once, before the forks: every optimizer imports it

    fork = multiprocessing.get_context("fork")
    ran = {}
    for shape in (*SHAPES, *FEEDS):
        child = fork.Process(target=shape)
        child.start()
        child.join()
        ran[shape.__name__] = [child.pid, child.exitcode]
    with open("shapes.json", "w") as file:
        json.dump(ran, file)
