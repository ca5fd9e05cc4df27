"""Record live pairs of equal launches: how far launches of the same code differ by chance.

    python scripts/record_live_pairs.py --work /tmp/pairs [--pairs 6] [--own-malloc] [--in-turn]
                                        [--kinds mlp conv loader embedding] [--file FILE]
    python scripts/record_live_pairs.py --fit [--file FILE]

Each kind of workload is launched once a side to warm up, then as many live pairs as asked follow;
their figures are added to `scripts/recordings/live_pairs.json`. `--own-malloc` leaves glibc as it
comes, which `gpurun bench` does not. `--in-turn` launches the sides one after the other: give these
a file of their own, such as `scripts/recordings/in_turn_pairs.json`.

`--fit` prints what the recordings say: for each kind the mean ratio, which must be 0, the standard
deviation between launches beyond the error of the turns (maximum likelihood, with its 95 % upper
limit by the likelihood ratio), and the scatter of the memory. What is assumed of live pairs comes
from the rows of both classes (`gpurun/pairs/estimate.py`). Those of GPU
workloads and of `live_bias.py`'s loops were recorded by their scripts, without the GPU's activity:
their class is what other runs of the same scripts showed (`tests/data/h200`).
`scripts/recordings/crowded_pairs.json` holds pairs beside programs that used both cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.bench.benchmark_launcher import STEADY_MALLOC, Launcher, warm_up_rule
from gpurun.bench.benchmarks import GATED, Benchmark
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.prepared_sides import Side
from gpurun.isolation.available_modes import require
from gpurun.pairs.estimate import is_loose
from gpurun.records.spec import StopRule
from gpurun.trials.stop_rules import later_rule

RECORDINGS = Path(__file__).resolve().parent / "recordings" / "live_pairs.json"
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
    within the pair, 0 of launches in turn. `machine`: where. `memory_log`: of the ratio of the
    peaks, None where it was not read. `own_malloc`: glibc was left as it comes. `loose`: as
    `gpurun.pairs.estimate.is_loose`.
    """

    kind: str
    log: float
    error: float
    rounds: int
    machine: str
    memory_log: float | None = None
    own_malloc: bool = False
    loose: bool = False


def record(
    kind: str, pairs: int, work: Path, own_malloc: bool, in_turn: bool
) -> list[RecordedPair]:
    """So many pairs of one kind of workload, live or in turn."""
    folder = work / f"{kind}-{os.urandom(4).hex()}"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(HEAD + KINDS[kind] + TRAIN)
    thresholds = {metric: metric.default_threshold for metric in GATED}
    benchmark = Benchmark(kind, folder, "train.py", (), None, None, {}, (), GATED, thresholds)
    mode, _ = require(folder, in_place=False)
    launcher = Launcher(benchmark, folder / "runs", mode, print)
    if own_malloc:
        STEADY_MALLOC.clear()
    starts = [
        Side(name, "", Tree(folder), folder, Path(sys.executable), dict(os.environ))
        for name in ("baseline", "current")
    ]
    found = []
    try:
        rule = warm_up_rule(None)
        first = [launcher.run(start, rule, first=True).result for start in starts]
        if in_turn:
            later = later_rule(None, first)
            return [launched_in_turn(kind, launcher, starts, later) for _ in range(pairs)]
        for _ in range(pairs):
            both = launcher.run_pair((starts[0], starts[1]), rule)
            if both.ratio is None or both.first is None or both.second is None:
                print(f"{kind}: {both.failure}", file=sys.stderr)
                continue
            ratio, sides = both.ratio, (both.first, both.second)
            one = RecordedPair(
                kind, round(ratio.log, 6), round(ratio.error, 6), ratio.rounds, machine(),
                _log([x.result.peak_memory_bytes for x in sides]), own_malloc,
                is_loose(*[x.result for x in sides]),
            )  # fmt: skip
            print(one, flush=True)
            found.append(one)
    finally:
        launcher.close()
    return found


def launched_in_turn(
    kind: str, launcher: Launcher, starts: list[Side], rule: StopRule
) -> RecordedPair:
    """One pair of launches, one after the other; the error within it is not known."""
    results = [launcher.run(start, rule).result for start in starts]
    times = [None if one.step_time_ms is None else one.step_time_ms.mean for one in results]
    first, second = (time or math.nan for time in times)
    log = round(math.log(second / first), 6)
    memory = _log([one.peak_memory_bytes for one in results])
    one = RecordedPair(kind, log, 0.0, 0, machine(), memory, loose=is_loose(*results))
    print(one, flush=True)
    return one


def machine() -> str:
    """Cores and load of this moment."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def _log(figures: list[int | None]) -> float | None:
    first, second = figures
    return None if not first or not second else round(math.log(first / second), 6)


def fitted(pairs: list[RecordedPair]) -> tuple[float, float]:
    """The standard deviation between launches beyond the error of the turns, and its upper limit.

    d is normal with mean 0 and the variance of both together; the limit is where the likelihood has
    fallen by half of 2.71 (one-sided 95 %).
    """

    def likelihood(sd: float) -> float:
        variances = [sd**2 + max(one.error, 1e-4) ** 2 for one in pairs]
        squares = [one.log**2 for one in pairs]
        return -0.5 * sum(math.log(v) + x / v for v, x in zip(variances, squares, strict=True))

    grid = [0.0005 * step for step in range(1000)]
    best = max(grid, key=likelihood)
    top = likelihood(best)
    return best, max(sd for sd in grid if sd >= best and likelihood(sd) > top - 2.71 / 2)


def print_fit(pairs: list[RecordedPair]) -> None:
    """A row for each kind and class: its bias with the standard error of that, and the scatter."""
    print("| workload | pairs | mean | between launches | at most | turns | memory |")
    print("|---|---|---|---|---|---|---|")
    kinds = sorted({x.kind for x in pairs})
    by_kind = {kind: [x for x in pairs if x.kind == kind] for kind in kinds}
    loose, others = ([x for x in pairs if x.loose is wanted] for wanted in (True, False))
    by_class = {"all that are loose": loose, "all others": others} if loose and others else {}
    for kind, rows in (by_kind | by_class | {"all": pairs}).items():
        logs = [one.log for one in rows]
        error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
        figures = (*fitted(rows), _rms([x.error for x in rows]), _rms([x.memory_log for x in rows]))
        cells = [f"{100 * figure:.1f} %" for figure in figures[:3]] + [f"{100 * figures[3]:.2f} %"]
        print(f"| {kind} | {len(rows)} | {100 * fmean(logs):+.1f} ± {100 * error:.1f} % | "
              f"{' | '.join(cells)} |")  # fmt: skip


def _rms(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return math.sqrt(sum(x * x for x in known) / len(known)) if known else math.nan


def main() -> int:
    """Record, and add to the file; or fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="folder for scratch files")
    parser.add_argument("--file", type=Path, default=RECORDINGS, help="where figures are kept")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    parser.add_argument("--own-malloc", action="store_true")
    parser.add_argument("--in-turn", action="store_true", help="one after the other, not live")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    known = json.loads(options.file.read_text()) if options.file.exists() else []
    if options.fit:
        print_fit([RecordedPair(**one) for one in known])
        return 0
    if options.work is None:
        parser.error("name a folder: --work /tmp/pairs")
    for kind in options.kinds:
        found = record(kind, options.pairs, options.work, options.own_malloc, options.in_turn)
        known += [asdict(pair) for pair in found]
        options.file.parent.mkdir(parents=True, exist_ok=True)
        options.file.write_text("[\n" + ",\n".join(map(json.dumps, known)) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
