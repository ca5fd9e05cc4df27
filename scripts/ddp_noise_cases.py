"""Training scripts that draw noise in the step, in the ways that users do.

Each is made like the scripts of `ddp_loss_cases.py`; its first argument seeds the noise. Ranks draw
other noise than one process: the trainings are equal within what other noise changes.
"""

from __future__ import annotations

from scripts.ddp_case_parts import MODEL, classifier
from scripts.ddp_loss_cases import GAN, VAE

SEED = "torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 7)\n"
MASKED = """
hidden = torch.rand(x.shape, device=device) < 0.3
rebuilt = model(x.masked_fill(hidden, 0.0))
loss = ((rebuilt - x) ** 2)[hidden].mean()
"""
DIFFUSION = """
t = torch.randint(0, 50, (x.shape[0],), device=device)
noise = torch.randn_like(x)
kept = alphas[t].unsqueeze(1)
guess = model(torch.cat([kept.sqrt() * x + (1 - kept).sqrt() * noise, kept], dim=1))
loss = F.mse_loss(guess, noise)
"""
MIXUP = """
share = numpy.random.beta(0.4, 0.4)
order = torch.randperm(x.size(0), device=device)
output = model(share * x + (1 - share) * x[order])
loss = share * F.cross_entropy(output, y) + (1 - share) * F.cross_entropy(output, y[order])
"""
DROP_PATH = """
keep = (torch.rand(x.size(0), 1, device=device) < 0.8).to(x.dtype) / 0.8
hidden = model[1](model[0](x))
loss = F.cross_entropy(model[2](hidden * keep), y)
"""
AUGMENTED = """

class Shifted(torch.utils.data.Dataset):
    def __len__(self):
        return len(inputs)

    def __getitem__(self, index):
        return inputs[index] + random.gauss(0, 0.2) * torch.randn(12), labels[index]


random.seed(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
loader = DataLoader(Shifted(), batch_size=32, shuffle=True)
"""
GUMBEL = """
code = F.gumbel_softmax(model(x), tau=1.0)
loss = F.cross_entropy(readout(code), y)
"""
WIDE = MODEL.replace("nn.Linear(24, 4)", "nn.Linear(24, 12)")

NOISY = {
    "vae_drawn": VAE.replace("NOISE", "torch.randn(len(data), 3, device=device)"),
    "gan_drawn": GAN.replace("NOISE", "torch.randn(real.size(0), 4, device=device)"),
    "dropout": classifier(
        "loss = F.cross_entropy(model(x), y)",
        model=MODEL.replace("nn.Tanh()", "nn.Tanh(), nn.Dropout(0.2)"),
        before=SEED,
    ),
    "dropout_of_a_sum": classifier(
        'loss = F.cross_entropy(F.dropout(model(x), 0.1), y, reduction="sum") / 16',
        rate=0.05,
        before=SEED,
    ),
    "masked": classifier(MASKED, model=WIDE, before=SEED),
    "diffusion": classifier(
        DIFFUSION,
        model=WIDE.replace("nn.Linear(12,", "nn.Linear(13,"),
        before="alphas = torch.linspace(0.98, 0.02, 50, device=device)\n" + SEED,
    ),
    "mixup": classifier(
        MIXUP, before="import numpy\n\nnumpy.random.seed(int((sys.argv + ['7'])[1]))\n" + SEED
    ),
    "drop_path": classifier(DROP_PATH, before=SEED),
    "augmented": classifier(
        "loss = F.cross_entropy(model(x), y)", before="import random\n" + AUGMENTED + SEED
    ),
    "gumbel": classifier(
        GUMBEL,
        before="readout = nn.Linear(4, 4).to(device)\n" + SEED,
    ),
}
