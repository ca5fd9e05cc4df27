"""Training scripts that do more than step: schedules, samplers, averages, budgets.

Each is made like the scripts of `ddp_loss_cases.py`.
"""

from __future__ import annotations

from scripts.ddp_case_parts import DATA, DOUBLE, END, IMPORTS, MODEL, START, classifier
from scripts.ddp_loss_cases import WEIGHT_SUM

MEAN = "loss = F.cross_entropy(model(x.to(device)), y.to(device))\n"
STEP = """\
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""
LOG = """\
with open("steps.csv", "a") as log:
    print(epoch, loss.item(), sep=",", file=log)
"""


def script(
    loop: str, rate: float = 0.1, model: str = MODEL, data: str = DATA, end: str = END
) -> str:
    """A script around a loop in which STEP, LOG and MEAN stand for the usual lines."""
    lines = []
    for line in loop.strip("\n").splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        block = {"STEP": STEP, "LOG": LOG, "MEAN": MEAN}.get(line.strip(), line.strip() + "\n")
        lines += [indent + inner for inner in block.splitlines()]
    body = "\n".join(lines) + "\n"
    return IMPORTS + DOUBLE + data + model + START.format(rate=rate) + body + end


PLAIN_LOOP = """
for epoch in range(3):
    for x, y in loader:
        MEAN
        STEP
        LOG
"""

LIGHTNING = """\
import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

L.seed_everything(7)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        with open("steps.csv", "a") as log:
            print(loss.item(), file=log)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    inputs = torch.randn(160, 16)
    labels = (inputs[:, :4] + 0.5 * torch.randn(160, 4)).argmax(dim=1)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
    model = Model()
    torch.save(model.state_dict(), "start.pt")
    trainer = L.Trainer(max_epochs=3, logger=False, enable_checkpointing=False)
    trainer.fit(model, loader)
    torch.save(model.state_dict(), "out.pt")
"""

SAME = {
    "lightning": LIGHTNING,
    "schedule_by_batch": script(
        """
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.3, epochs=3, steps_per_epoch=len(loader))
for epoch in range(3):
    for x, y in loader:
        MEAN
        STEP
        scheduler.step()
        LOG
"""
    ),
    "evaluates_within_epochs": script(
        """
held_out = DataLoader(TensorDataset(inputs[:40], labels[:40]), batch_size=20)
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        model.train()
        MEAN
        STEP
        LOG
        if i % 2 == 0:
            model.eval()
            with torch.no_grad():
                right = sum((model(a.to(device)).argmax(1).cpu() == b).sum() for a, b in held_out)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 if right < 30 else 0.05
"""
    ),
    "averaged_weights": script(
        """
averaged = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
for epoch in range(3):
    for x, y in loader:
        MEAN
        STEP
        averaged.update_parameters(model)
        LOG
model = averaged.module
"""
    ),
    "thaws_layers": script(
        """
model[0].requires_grad_(False)
for epoch in range(4):
    if epoch == 2:
        model[0].requires_grad_(True)
    for x, y in loader:
        MEAN
        STEP
        LOG
"""
    ),
    "growing_batches": script(
        """
for epoch in range(3):
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=16 * 2**epoch, shuffle=True)
    for x, y in loader:
        MEAN
        STEP
        LOG
"""
    ),
    "growing_batches_sum": script(
        """
for epoch in range(3):
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=16 * 2**epoch, shuffle=True)
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum") / 32
        STEP
        LOG
"""
    ),
    "one_sample_left": script(PLAIN_LOOP, data=DATA.replace("150", "129")),
    "two_samples_left_of_a_sum": script(
        PLAIN_LOOP.replace("MEAN", 'loss = F.cross_entropy(model(x), y, reduction="sum") / 32'),
        data=DATA.replace("150", "130"),
    ),
    "weighted_sampler": script(
        """
weights = 1.0 / torch.bincount(labels, minlength=4)[labels]
sampler = torch.utils.data.WeightedRandomSampler(weights, 150)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, sampler=sampler)
"""
        + PLAIN_LOOP
    ),
    "batches_of_many_sizes": script(
        """
order = torch.randperm(150, generator=torch.Generator().manual_seed(3)).tolist()
cuts = [0, 20, 52, 70, 100, 131, 150]
batches = [order[a:b] for a, b in zip(cuts, cuts[1:])]
loader = DataLoader(TensorDataset(inputs, labels), batch_sampler=batches)
"""
        + PLAIN_LOOP
    ),
    "two_loaders": script(
        """
unlabelled = DataLoader(TensorDataset(torch.randn(300, 12)), batch_size=64, shuffle=True)
for epoch in range(3):
    for (x, y), (u,) in zip(loader, unlabelled):
        MEAN
        guess = model(u.to(device)).softmax(1)
        loss = loss - 0.1 * (guess * guess.log()).sum(1).mean()
        STEP
        LOG
"""
    ),
    "endless_iterator": script(
        """
batches = iter(loader)
for epoch in range(14):
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    MEAN
    STEP
    LOG
"""
    ),
    "harmless_batch_size": script(
        """
BATCH = 32
for group in optimizer.param_groups:
    group["lr"] = 0.1 * BATCH / 64
loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH, shuffle=True)
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum") / BATCH
        STEP
        LOG
        print(f"{i * BATCH}/{len(loader.dataset)}")
"""
    ),
    "closure": script(
        """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3)
for epoch in range(2):
    for x, y in loader:
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            return loss
        loss = optimizer.step(closure)
        LOG
"""
    ),
    "sharpness_aware": script(
        """
for epoch in range(3):
    for x, y in loader:
        MEAN
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            steps = [0.05 * p.grad / norm for p in model.parameters()]
            for p, step in zip(model.parameters(), steps):
                p.add_(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        with torch.no_grad():
            for p, step in zip(model.parameters(), steps):
                p.sub_(step)
        optimizer.step()
        optimizer.zero_grad()
        LOG
"""
    ),
    "kept_gradient_sum": script(
        """
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad.clamp_(-1, 1)
        optimizer.step()
        LOG
""",
        rate=0.05,
    ),
}
"""What ranks can train as one process does."""

SILENT = {
    "rate_by_samples_seen": script(
        """
seen = 0
for epoch in range(3):
    for x, y in loader:
        for group in optimizer.param_groups:
            group["lr"] = 0.2 * (1 - seen / 600)
        MEAN
        STEP
        LOG
        seen += len(x)
"""
    ),
    "budget_of_samples": script(
        """
seen, epoch = 0, 0
while seen < 450:
    for x, y in loader:
        MEAN
        STEP
        LOG
        seen += x.size(0)
    epoch += 1
"""
    ),
    "steps_by_samples": script(
        """
waiting = 0
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y, reduction="sum") / 64
        loss.backward()
        waiting += len(x)
        if waiting >= 64:
            optimizer.step()
            optimizer.zero_grad()
            waiting = 0
            LOG
"""
    ),
    "sum_after_an_epoch": script(
        """
for epoch in range(3):
    for x, y in loader:
        kind = "mean" if epoch == 0 else "sum"
        loss = F.cross_entropy(model(x.to(device)), y.to(device), reduction=kind)
        loss = loss if epoch == 0 else loss / 32
        STEP
        LOG
"""
    ),
    "penalty_after_an_epoch": script(
        f"""
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum")
        loss = loss + min(epoch, 1) * {WEIGHT_SUM}
        STEP
        LOG
""",
        rate=0.002,
    ),
    "hard_examples": classifier(
        'loss = F.cross_entropy(model(x), y, reduction="none").topk(len(x) // 4).values.mean()'
    ),
    "eight_hardest": classifier(
        'loss = F.cross_entropy(model(x), y, reduction="none").topk(6).values.mean()'
    ),
    "standardised_inputs": classifier(
        "loss = F.cross_entropy(model((x - x.mean(0)) / x.std(0)), y)"
    ),
    "scaled_by_itself": classifier(
        'loss = F.cross_entropy(model(x), y, reduction="sum")\nloss = loss / loss.detach()'
    ),
    "skips_good_batches": script(
        """
for epoch in range(3):
    for x, y in loader:
        MEAN
        if loss.item() < 1.2:
            continue
        STEP
        LOG
"""
    ),
    "running_centre": classifier(
        """
output = model(x)
centre = 0.9 * centre + 0.1 * output.detach().mean(0)
loss = F.cross_entropy(output - centre, y)
""",
        before="centre = torch.zeros(4, device=device)\n",
    ),
    "queue_of_outputs": classifier(
        """
z = F.normalize(model(x), dim=1)
near = (z * F.normalize(model(x.flip(1)), dim=1)).sum(1, keepdim=True)
logits = torch.cat([near, z @ queue.T], dim=1) / 0.3
loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=device))
queue = torch.cat([z.detach(), queue])[:48]
""",
        before="queue = F.normalize(torch.randn(48, 4, device=device), dim=1)\n",
    ),
    "best_by_training_loss": script(
        """
best = float("inf")
for epoch in range(6):
    total = 0.0
    for x, y in loader:
        MEAN
        STEP
        LOG
        total += loss.item() * len(x)
    if total < best:
        best = total
        torch.save(model.state_dict(), "out.pt")
    else:
        optimizer.param_groups[0]["lr"] *= 0.5
""",
        rate=1.5,
    ),
    "padded_to_the_longest": script(
        """
def collate(samples):
    rows = [torch.randn(n, 12, generator=torch.Generator().manual_seed(n)) for _, _, n in samples]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return padded, torch.stack([y for _, y, _ in samples])
lengths = torch.randint(1, 30, (150,)).tolist()
samples = list(zip(inputs, labels, lengths))
loader = DataLoader(samples, batch_size=32, shuffle=True, collate_fn=collate)
for epoch in range(3):
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits.transpose(1, 2), y[:, None].expand(-1, x.size(1)))
        STEP
        LOG
"""
    ),
    "batch_size_in_the_loss": script(
        """
def batch_variance(output):
    return ((output - output.mean(0)) ** 2).sum() / (output.size(0) - 1)
for epoch in range(3):
    for x, y in loader:
        output = model(x)
        loss = F.cross_entropy(output, y) - 0.05 * batch_variance(output)
        STEP
        LOG
"""
    ),
}
"""What trains differently where nobody takes care of it."""

CASES = {**SAME, **SILENT}
