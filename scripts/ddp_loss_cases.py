"""Training scripts whose losses reduce in different ways, each as a user writes it.

Every script stands by itself, trains with plain SGD on a shuffled DataLoader whose last batch is
partial (150 samples, batches of 32), writes `start.pt` and `out.pt`, and adds a line to `steps.csv`
with each step. What a script needs at random is part of its data set, so that one process and
several ranks see the same.
"""

from __future__ import annotations

from scripts.ddp_case_parts import DATA, DOUBLE, END, IMPORTS, MODEL, START, classifier

SUMMED = 'F.cross_entropy(model(x), y, reduction="sum")'

CUSTOM = """

class SquaredError(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, target):
        ctx.save_for_backward(output, target)
        return (output - target).pow(2).{reduce}()

    @staticmethod
    def backward(ctx, grad):
        output, target = ctx.saved_tensors
        return grad * 2 * (output - target){over}, None

"""

COMPILED = """

@torch.compile
def criterion(output, target):
    return F.cross_entropy(output, target, reduction="{reduction}"){over}

"""

VAE = (
    IMPORTS
    + """

class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(12, 16)
        self.mu = nn.Linear(16, 3)
        self.logvar = nn.Linear(16, 3)
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 12))

    def forward(self, x, noise):
        hidden = torch.relu(self.encoder(x))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        z = mu + noise * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.decoder(z)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x, reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, (data, noise) in enumerate(train_loader):
        data, noise = data.to(device), noise.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data, NOISE)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        with open("steps.csv", "a") as log:
            log.write(f"{epoch},{batch_idx},{loss.item()}\\n")
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f}")


if __name__ == "__main__":
    pictures = torch.rand(150, 12)
    train_set = TensorDataset(pictures, torch.randn(150, 3))
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    model = VAE().to(device)
    torch.save(model.state_dict(), "start.pt")
    torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(1, 5):
        train(epoch)
    torch.save(model.state_dict(), "out.pt")
"""
)

WARM_UP = """\
steps = []


def warm_up():
    steps.append(0)
    return min(1.0, (len(steps) - 1) / 10)


"""

GAN = (
    IMPORTS
    + """
real_data = torch.randn(150, 6) * 0.5 + 1
dataset = TensorDataset(real_data, torch.randn(150, 4))
dataloader = DataLoader(dataset, batch_size=32, shuffle=True)
netG = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 6)).to(device)
netD = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.SGD(netD.parameters(), lr=0.1)
optimizerG = torch.optim.SGD(netG.parameters(), lr=0.1)
torch.save({**netG.state_dict(prefix="g."), **netD.state_dict(prefix="d.")}, "start.pt")
torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 7)

for epoch in range(3):
    for i, (real, z) in enumerate(dataloader, 0):
        real, z = real.to(device), z.to(device)
        netD.zero_grad()
        ones = torch.ones(real.size(0), 1, device=device)
        errD_real = criterion(netD(real), ones)
        errD_real.backward()
        noise = NOISE
        fake = netG(noise)
        errD_fake = criterion(netD(fake.detach()), torch.zeros_like(ones))
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        errG = criterion(netD(fake), ones)
        errG.backward()
        optimizerG.step()
        with open("steps.csv", "a") as log:
            log.write(f"{epoch},{i},{errD_real.item() + errD_fake.item()},{errG.item()}\\n")

torch.save({**netG.state_dict(prefix="g."), **netD.state_dict(prefix="d.")}, "out.pt")
"""
)

DISTILLATION = """
teacher = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4)).to(device).eval()
T = 2.0
"""

TOKENS = (
    IMPORTS
    + DOUBLE
    + """
PAD = 0
lengths = torch.randint(3, 11, (150,))
texts = torch.randint(1, 20, (150, 10))
texts[torch.arange(10)[None] >= lengths[:, None]] = PAD
loader = DataLoader(TensorDataset(texts), batch_size=32, shuffle=True)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


model = Language().to(device)
"""
    + START.format(rate=0.5)
    + """
for epoch in range(3):
    for (tokens,) in loader:
        tokens = tokens.to(device)
        logits, target = model(tokens[:, :-1]), tokens[:, 1:]
        LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with open("steps.csv", "a") as log:
            print(epoch, loss.item(), sep=",", file=log)
"""
    + END
)

OWN_FORWARD = """

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))

    def forward(self, x, y):
        logits = self.body(x)
        return logits, F.cross_entropy(logits, y{reduction})


model = Classifier().to(device)
"""

ACCUMULATION = (
    IMPORTS
    + DOUBLE
    + DATA
    + MODEL
    + START.format(rate=0.1)
    + """
criterion = nn.CrossEntropyLoss()
ACCUMULATE = 3
optimizer.zero_grad()
for epoch in range(4):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x.to(device)), y.to(device)) / ACCUMULATE
        loss.backward()
        if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            with open("steps.csv", "a") as log:
                print(epoch, i, loss.item(), sep=",", file=log)
"""
    + END
)

TWO_BACKWARDS = (
    IMPORTS
    + DOUBLE
    + DATA
    + """

class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 24), nn.Tanh())
        self.classes = nn.Linear(24, 4)
        self.back = nn.Linear(24, 12)

    def forward(self, x):
        hidden = self.trunk(x)
        return self.classes(hidden), self.back(hidden)


model = TwoHeads().to(device)
"""
    + START.format(rate="RATE")
    + """
for epoch in range(3):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        logits, rebuilt = model(x)
        first = FIRST
        second = SECOND
        BACKWARD
        optimizer.step()
        with open("steps.csv", "a") as log:
            print(epoch, first.item(), second.item(), sep=",", file=log)
"""
    + END
)


def two_losses(
    first: str,
    second: str,
    rate: float,
    backward: str = "first.backward(retain_graph=True)\n        second.backward()",
) -> str:
    """A script with one loss for each of two heads."""
    return (
        TWO_BACKWARDS.replace("FIRST", first)
        .replace("SECOND", second)
        .replace("RATE", str(rate))
        .replace("BACKWARD", backward)
    )


def warmed_up_vae(term: str) -> str:
    """The script of an autoencoder whose second term begins at nothing and grows for ten steps."""
    return (
        VAE.replace("NOISE", "noise")
        .replace("BCE + KLD", f"BCE + warm_up() * {term}")
        .replace("def loss_function", f"{WARM_UP}def loss_function")
    )


CLIPPED = (
    classifier(f"loss = {SUMMED}", rate=0.05)
    .replace("optimizer.step()", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        STEP")
    .replace("STEP", "optimizer.step()")
)

WEIGHT_SUM = "sum(p.pow(2).sum() for p in model.parameters())"

MEANS = {
    "mean": classifier("loss = F.cross_entropy(model(x), y)"),
    "mean_float32": classifier("loss = nn.CrossEntropyLoss()(model(x), y)", double=False),
    "mean_times_constant": classifier("loss = 0.5 * F.cross_entropy(model(x), y)"),
    "sum_by_samples": classifier(f"loss = {SUMMED} / x.size(0)"),
    "custom_mean": classifier(
        "loss = SquaredError.apply(model(x), F.one_hot(y, 4).to(x.dtype))",
        before=CUSTOM.format(reduce="mean", over=" / output.numel()"),
    ),
    "compiled_mean": classifier(
        "loss = criterion(model(x), y)", before=COMPILED.format(reduction="mean", over="")
    ),
    "compiled_model": classifier(
        "loss = F.cross_entropy(compiled(x), y)", before="compiled = torch.compile(model)\n"
    ),
    "penalty_beside_mean": classifier(f"loss = F.cross_entropy(model(x), y) + 0.01 * {WEIGHT_SUM}"),
    "distance_beside_mean": classifier(
        "loss = F.cross_entropy(model(x), y) + (model[0].weight - first).pow(2).sum()",
        before="first = model[0].weight.detach().clone()\n",
    ),
    "distillation": classifier(
        """
with torch.no_grad():
    soft = F.softmax(teacher(x) / T, dim=1)
student = model(x)
loss = F.kl_div(F.log_softmax(student / T, dim=1), soft, reduction="batchmean") * T * T
loss = 0.7 * loss + 0.3 * F.cross_entropy(student, y)
""",
        before=DISTILLATION,
    ),
    "focal": classifier(
        """
ce = F.cross_entropy(model(x), y, reduction="none")
loss = (0.25 * (1 - torch.exp(-ce)) ** 2 * ce).mean()
""",
        rate=1.0,
    ),
    "own_forward": classifier("_, loss = model(x, y)", model=OWN_FORWARD.format(reduction="")),
    "accumulation": ACCUMULATION,
    "two_backwards": two_losses("F.cross_entropy(logits, y)", "F.mse_loss(rebuilt, x)", 0.1),
    "gan": GAN.replace("NOISE", "z"),
}
"""Means over samples, whose share of a rank is a mean as well."""

SUMS = {
    "sum": classifier(f"loss = {SUMMED}", rate=0.002),
    "sum_by_16": classifier(f"loss = {SUMMED} / 16", rate=0.05),
    "sum_by_11": classifier(f"loss = {SUMMED} / 11", rate=0.05),
    "sum_by_batch_size": classifier(f"loss = {SUMMED} / 32"),
    "sum_by_1000": classifier(f"loss = {SUMMED} / 1000", rate=2.0),
    "mean_times_samples": classifier("loss = F.cross_entropy(model(x), y) * x.size(0)", rate=0.002),
    "custom_sum": classifier(
        "loss = SquaredError.apply(model(x), F.one_hot(y, 4).to(x.dtype))",
        rate=0.002,
        before=CUSTOM.format(reduce="sum", over=""),
    ),
    "einsum_sum": classifier(
        """
error = model(x) - F.one_hot(y, 4).to(x.dtype)
loss = torch.einsum("bc,bc->", error, error) / 16
""",
        rate=0.03,
    ),
    "compiled_sum": classifier(
        "loss = criterion(model(x), y)",
        rate=0.05,
        before=COMPILED.format(reduction="sum", over=" / 16"),
    ),
    "loop_over_samples": classifier(
        """
logits = model(x)
loss = 0
for i in range(len(x)):
    loss = loss + F.cross_entropy(logits[i], y[i])
""",
        rate=0.002,
    ),
    "clipped_sum": CLIPPED,
    "vector_backward": classifier(
        'loss = F.cross_entropy(model(x), y, reduction="none")', rate=0.05
    )
    .replace("loss.backward()", "loss.backward(gradient=torch.ones_like(loss) / 16)")
    .replace("loss.item()", "loss.mean().item()"),
    "warmed_up_sum": warmed_up_vae("KLD"),
    "own_forward_sum": classifier(
        "_, loss = model(x, y)",
        rate=0.002,
        model=OWN_FORWARD.format(reduction=', reduction="sum"'),
    ),
    "vae": VAE.replace("NOISE", "noise"),
}
"""Sums over samples, also divided by constants."""

MIXED = {
    "penalty_beside_sum": classifier(f"loss = {SUMMED} + 2.0 * {WEIGHT_SUM}", rate=0.002),
    "small_penalty_beside_sum": classifier(f"loss = {SUMMED} + 0.05 * {WEIGHT_SUM}", rate=0.002),
    "distance_beside_sum": classifier(
        f"loss = {SUMMED} + (model[0].weight - first).pow(2).sum()",
        rate=0.002,
        before="first = model[0].weight.detach().clone()\n",
    ),
    "warmed_up_mean_beside_sum": warmed_up_vae("KLD / len(x)"),
    "auxiliary_from_step_2": classifier(
        """
steps += 1
output = model(x)
loss = F.cross_entropy(output, y) + (0.05 * output.pow(2).sum() if steps >= 2 else 0)
""",
        before="steps = 0\n",
    ),
    "mean_and_sum_by_heads": two_losses(
        "F.cross_entropy(logits, y)", 'F.mse_loss(rebuilt, x, reduction="sum")', 0.002
    ),
    "mean_plus_sum": two_losses(
        "F.cross_entropy(logits, y)",
        '0.01 * F.mse_loss(rebuilt, x, reduction="sum")',
        0.05,
        backward="(first + second).backward()",
    ),
    "root_mean_square": classifier(
        "loss = F.mse_loss(model(x), F.one_hot(y, 4).to(x.dtype)).sqrt()"
    ),
    "tokens_ignored": TOKENS.replace(
        "LOSS", "loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)"
    ),
    "tokens_weighted": TOKENS.replace(
        "LOSS",
        """mask = (target != PAD).to(logits.dtype)
        each = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        loss = (each * mask).sum() / mask.sum()""",
    ),
    "classes_weighted": classifier(
        "loss = F.cross_entropy(model(x), y, weight=weights)",
        before="weights = torch.tensor([1.0, 0.2, 5.0, 1.0], device=device)\n",
    ),
    "contrastive": classifier(
        """
z = F.normalize(model(x), dim=1)
w = F.normalize(model(x.flip(1)), dim=1)
similarity = z @ w.T / 0.2
loss = F.cross_entropy(similarity, torch.arange(len(x), device=device))
"""
    ),
}
"""Losses that are neither: each must be equal, be refused, or say that it differs."""

CASES = {**MEANS, **SUMS, **MIXED}
