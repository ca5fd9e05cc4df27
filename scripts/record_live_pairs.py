"""Record live pairs of equal launches: how far launches of the same code differ by chance.

    python scripts/record_live_pairs.py --work /tmp/pairs --file scripts/data/live_pairs.json
                                        [--pairs 6] [--kinds mlp conv loader embedding]

From these the gate's prior for the variance between launches is taken, in `gpurun/bench/compare/
gate.py`; `scripts/fit_launch_prior.py` fits it. Each kind of workload is launched once to warm up,
then as many live pairs as asked. The file holds figures only, and a later call adds to them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.bench.benchmarks import GATED, Benchmark
from gpurun.bench.launches import Launcher, Start, warm_up_rule
from gpurun.isolation.box import require

HEAD = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\ntorch.set_num_threads(1)\n"
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x, y in batches():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
KINDS = {
    "mlp": """
model = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(128, 128), nn.ReLU())])
data = torch.randn(64, 128), torch.randint(0, 128, (64,))
def batches():
    yield data
""",
    "conv": """
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1),
    nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
data = torch.randn(16, 3, 48, 48), torch.randint(0, 10, (16,))
def batches():
    yield data
""",
    "loader": """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 6400
    def __getitem__(self, i):
        x = torch.full((1000,), float(i))
        for _ in range(12):
            x = torch.sin(x) + 1
        return x[:64], i % 10
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
batches = lambda: torch.utils.data.DataLoader(Numbers(), batch_size=16, shuffle=True)
""",
    "embedding": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(20000, 32)
        self.head = nn.Linear(32, 10)
    def forward(self, words):
        return self.head(self.table(torch.tensor(words)))
model = Tagger()
import random
draw = random.Random(0)
def batches():
    words = [[draw.randrange(20000) for _ in range(40)] for _ in range(64)]
    yield words, torch.tensor([sum(w) % 10 for w in words])
""",
}


@dataclass(frozen=True)
class RecordedPair:
    """One live pair of equal launches. `log`: of the ratio by turns, `error`: its standard error
    within the pair. `stretch_log`: of the ratio by the uninterrupted stretches, `memory_log`: of
    the peaks. `load`: the machine's average of the last minute.
    """

    kind: str
    log: float
    error: float
    rounds: int
    stretch_log: float | None
    memory_log: float | None
    seconds: float
    load: float


def record(kind: str, pairs: int, work: Path) -> list[RecordedPair]:
    """So many live pairs of one kind of workload."""
    folder = work / f"{kind}-{time.time_ns()}"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(HEAD + KINDS[kind] + TRAIN)
    thresholds = {metric: metric.default_threshold for metric in GATED}
    benchmark = Benchmark(kind, folder, "train.py", (), None, None, {}, (), GATED, thresholds)
    mode, _ = require(folder, in_place=False)
    launcher = Launcher(benchmark, folder / "runs", mode, print)
    starts = [
        Start(name, folder, Path(sys.executable), dict(os.environ))
        for name in ("baseline", "current")
    ]
    found = []
    try:
        rule = warm_up_rule(None)
        for start in starts:
            launcher.run(start, rule, first=True)
        for _ in range(pairs):
            began = time.monotonic()
            both = launcher.run_pair((starts[0], starts[1]), rule)
            if both.ratio is None or both.first is None or both.second is None:
                print(f"{kind}: {both.failure}", file=sys.stderr)
                continue
            ratio, sides = both.ratio, (both.first, both.second)
            one = RecordedPair(
                kind, round(ratio.log, 6), round(ratio.error, 6), ratio.rounds,
                _log([x.steps_per_second for x in sides]),
                _log([x.result.peak_memory_bytes for x in sides]),
                round(time.monotonic() - began, 2), round(os.getloadavg()[0], 2),
            )  # fmt: skip
            print(one, flush=True)
            found.append(one)
    finally:
        launcher.close()
    return found


def _log(figures: list[float | None] | list[int | None]) -> float | None:
    first, second = figures
    return None if not first or not second else round(math.log(first / second), 6)


def main() -> int:
    """Record, and add to the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for scratch files")
    parser.add_argument("--file", type=Path, required=True, help="where figures are kept")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    options = parser.parse_args()
    for kind in options.kinds:
        known = json.loads(options.file.read_text()) if options.file.exists() else []
        known += [asdict(pair) for pair in record(kind, options.pairs, options.work)]
        options.file.parent.mkdir(parents=True, exist_ok=True)
        options.file.write_text("[\n" + ",\n".join(map(json.dumps, known)) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
