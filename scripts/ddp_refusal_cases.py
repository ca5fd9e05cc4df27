"""Training scripts that hidden data parallelism cannot train, each as a user writes it.

Every script trains by itself on one device, adds a line to `steps.csv` with each step, and writes
`out.pt` at its end. A case may have a second file, `part.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.ddp_case_parts import IMPORTS

DATA = """
batch_size = 32
inputs = torch.randn(160, 16)
labels = (inputs[:, :4] + 0.5 * torch.randn(160, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4)).to(device)
"""
OPTIMIZER = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOG = """\
with open("steps.csv", "a") as log:
    print(loss.item(), file=log)
"""
SAVE = """
torch.save(model.state_dict(), "out.pt")
"""


@dataclass(frozen=True)
class Case:
    """`line`: code in the line that a refusal has to name; None where no single line is at fault.
    `needs`: a package without which the case is left out.
    """

    script: str
    line: str | None = None
    part: str | None = None
    needs: str | None = None


def loop(step: str, epochs: int = 3, over: str = "x, y in loader") -> str:
    """Epochs over batches. `step`: forward, backward and update, leaving `loss`."""
    lines = [f"for epoch in range({epochs}):", f"    for {over}:"]
    lines += [" " * 8 + line for line in (step.strip("\n") + "\n" + LOG).splitlines()]
    return "\n".join(lines) + "\n"


UPDATE = """
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""


def usual(loss: str) -> str:
    """A script with the usual loop around a loss."""
    return IMPORTS + DATA + OPTIMIZER + loop(loss.strip("\n") + UPDATE) + SAVE


WORKER = """
import os
import torch.distributed as dist
import torch.multiprocessing as mp


def data():
    torch.manual_seed(7)
    inputs = torch.randn(160, 16)
    labels = (inputs[:, :4] + 0.5 * torch.randn(160, 4)).argmax(dim=1)
    return TensorDataset(inputs, labels)

"""

SPAWN = (
    IMPORTS
    + WORKER
    + """
def train(rank, world_size):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29711"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(7)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = torch.utils.data.distributed.DistributedSampler(data(), world_size, rank)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data(), batch_size=16, sampler=sampler):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with open("steps.csv", "a") as log:
                print(loss.item(), file=log)
    if rank == 0:
        torch.save(model.module.state_dict(), "out.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
"""
)

HOGWILD = (
    IMPORTS
    + WORKER
    + """
def train(rank, model):
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for x, y in DataLoader(data(), batch_size=32, shuffle=True):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with open("steps.csv", "a") as log:
                print(loss.item(), file=log)


if __name__ == "__main__":
    mp.set_start_method("spawn", force=True)
    model = nn.Linear(16, 4)
    model.share_memory()
    processes = []
    for rank in range(2):
        p = mp.Process(target=train, args=(rank, model))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
    torch.save(model.state_dict(), "out.pt")
"""
)

SWEEP = """\
import subprocess
import sys

for rate in ("0.1", "0.05"):
    subprocess.run([sys.executable, "part.py", rate], check=True)
print("the sweep is done")
"""
SWEEP_PART = usual("loss = F.cross_entropy(model(x.to(device)), y.to(device))").replace(
    "lr=0.1", "lr=float(sys.argv[1])"
)

HAND_MADE = """
for epoch in range(3):
    order = torch.randperm(len(inputs))
    for i in range(0, len(inputs), batch_size):
        batch = order[i : i + batch_size]
        x, y = inputs[batch].to(device), labels[batch].to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open("steps.csv", "a") as log:
            print(loss.item(), file=log)
"""

UNBATCHED = """
loader = DataLoader(dataset, batch_size=None, shuffle=True)
"""

SMALL_STREAM = """

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(dataset)


loader = DataLoader(Stream(), batch_size=1)
"""

FUNCTIONAL = loop(
    """
x, y = x.to(device), y.to(device)
loss = F.cross_entropy(model(x), y)
parameters = list(model.parameters())
gradients = torch.autograd.grad(loss, parameters)
with torch.no_grad():
    for p, g in zip(parameters, gradients):
        p -= 0.1 * g
"""
)

IN_BACKWARD = """
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}


def optimizer_hook(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)
"""

TRAINER = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(7)
inputs = torch.randn(160, 16)
labels = (inputs[:, :4] + 0.5 * torch.randn(160, 4)).argmax(dim=1)
dataset = [{"x": x, "labels": y} for x, y in zip(inputs, labels)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Log(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        with open("steps.csv", "a") as log:
            print(state.global_step, file=log)


model = Model()
arguments = TrainingArguments(
    output_dir="checkpoints",
    per_device_train_batch_size=16,
    num_train_epochs=3,
    learning_rate=0.01,
    report_to=[],
    save_strategy="no",
)
Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[Log()]).train()
torch.save(model.state_dict(), "out.pt")
"""

ACCELERATE = (
    IMPORTS
    + "from accelerate import Accelerator\n"
    + DATA
    + OPTIMIZER
    + """
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""
    + loop(
        """
loss = F.cross_entropy(model(x), y)
optimizer.zero_grad()
accelerator.backward(loss)
optimizer.step()
"""
    )
    + """
torch.save(accelerator.unwrap_model(model).state_dict(), "out.pt")
"""
)

STATEFUL = """

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x, hidden):
        out, hidden = self.rnn(x, hidden)
        return self.head(out[:, -1]), hidden

    def init_hidden(self, size):
        return torch.zeros(1, size, 16, device=device), torch.zeros(1, size, 16, device=device)


model = Recurrent().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hidden = model.init_hidden(batch_size)
"""

GAN = """
netD = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0)).to(device)
optimizer = torch.optim.SGD(netD.parameters(), lr=0.1)
"""

CASES = {
    "mp_spawn": Case(SPAWN, "mp.spawn("),
    "hogwild": Case(HOGWILD, "p.start()"),
    "subprocess": Case(SWEEP, "subprocess.run(", part=SWEEP_PART),
    "reshape_fails": Case(
        usual(
            """
x, y = x.to(device), y.to(device)
x = x.reshape(batch_size, -1)
loss = F.cross_entropy(model(x), y)
"""
        ),
        "x.reshape(batch_size, -1)",
    ),
    "view_passes": Case(
        usual(
            """
x, y = x.to(device), y.to(device)
error = (model(x) - F.one_hot(y, 4)).view(batch_size, -1)
loss = error.norm(dim=1).mean()
"""
        ),
        ".view(batch_size, -1)",
    ),
    "trainer": Case(TRAINER, ".train()", needs="transformers"),
    "accelerate": Case(ACCELERATE, needs="accelerate"),
    "batches_by_hand": Case(IMPORTS + DATA + OPTIMIZER + HAND_MADE + SAVE),
    "no_batches": Case(
        IMPORTS
        + DATA
        + OPTIMIZER
        + UNBATCHED
        + loop(
            """
loss = F.cross_entropy(model(x.to(device))[None], y.to(device)[None])
"""
            + UPDATE,
            epochs=1,
        )
        + SAVE,
        "batch_size=None",
    ),
    "small_stream": Case(
        IMPORTS
        + DATA
        + OPTIMIZER
        + SMALL_STREAM
        + loop("loss = F.cross_entropy(model(x.to(device)), y.to(device))" + UPDATE, epochs=1)
        + SAVE,
        "DataLoader(Stream(), batch_size=1)",
    ),
    "no_optimizer": Case(IMPORTS + DATA + FUNCTIONAL + SAVE),
    "steps_in_backward": Case(
        IMPORTS
        + DATA
        + IN_BACKWARD
        + loop("loss = F.cross_entropy(model(x.to(device)), y.to(device))\nloss.backward()")
        + SAVE
    ),
    "mean_beside_sum": Case(
        usual(
            """
output = model(x.to(device))
loss = F.cross_entropy(output, y.to(device)) + 0.05 * output.pow(2).sum()
"""
        )
    ),
    "stateful_lstm": Case(
        IMPORTS
        + DATA
        + STATEFUL
        + loop(
            """
x, y = x.to(device), y.to(device)
output, hidden = model(x.view(-1, 4, 4), tuple(h.detach() for h in hidden))
loss = F.cross_entropy(output, y)
"""
            + UPDATE
        )
        + SAVE,
        "model.init_hidden(batch_size)",
    ),
    "labels_of_a_batch": Case(
        IMPORTS
        + DATA
        + GAN
        + loop(
            """
x = x.to(device)
real = F.binary_cross_entropy_with_logits(netD(x), torch.ones(batch_size, device=device))
fake = netD(torch.randn(batch_size, 16, device=device))
loss = real + F.binary_cross_entropy_with_logits(fake, torch.zeros(batch_size, device=device))
"""
            + UPDATE
        )
        + SAVE.replace("model", "netD"),
        "torch.ones(batch_size",
    ),
    "contrast_of_a_batch": Case(
        usual(
            """
x = x.to(device)
z = F.normalize(model(x), dim=1)
same = torch.eye(batch_size, device=device)
loss = ((z @ F.normalize(model(x.flip(1)), dim=1).T)[: len(same)] - same).pow(2).mean()
"""
        ),
        "torch.eye(batch_size",
    ),
}
