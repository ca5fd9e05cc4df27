"""What watching costs a training: the live line, the metrics, and scrapes.

    python scripts/bench_watching.py [--seconds 240] [--scrapes 200]

One run under `gpurun --live --prometheus 0`. Spans of 1.6 seconds alternate, in random order
within each round: "frozen" (the launcher is stopped: nothing samples, follows or serves),
"watched" (it runs, and is scraped once a second) and "scraped" (it answers `--scrapes` requests a
second). The script notes when each of its steps ended. Printed: the ratio of the median step time
to that of the frozen spans of the same rounds, with its 95 % interval (Student's t over rounds),
and the requests that failed. Bars: watched at most 0.5 %, scraped at most 1 %.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pty
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from bisect import bisect_left
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.bench_overhead import interval

REPOSITORY = Path(__file__).resolve().parents[1]
SPAN_SECONDS, EDGE_SECONDS = 1.6, 0.3
"""Length of a span, and what is left out at its beginning."""
KINDS = ("frozen", "watched", "scraped")
TRAIN = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
device, width, more = ("cuda", 4096, 12) if torch.cuda.is_available() else ("cpu", 1024, 0)
hidden = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(more)]
model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), *hidden, nn.Linear(width, 256)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(4096, 256)), batch_size=256)
until, ends = time.monotonic() + float(sys.argv[1]), []
while time.monotonic() < until:
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()
        ends.append(time.monotonic())
with open("ends", "w") as file:
    file.writelines(f"{end}\\n" for end in ends)
"""


def main() -> None:
    """Run, and print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--scrapes", type=int, default=200, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        rounds, answered, failed = watch(folder, options)
        ends = [float(line) for line in (folder / "ends").read_text().split()]
    steps = [{kind: median_step(ends, begin) for kind, begin in one.items()} for one in rounds]
    steps = [one for one in steps if None not in one.values()]
    for kind in KINDS[1:]:
        logs = [math.log(one[kind] / one["frozen"]) for one in steps]
        mean, low, high = interval(logs)
        print(f"{kind}: {mean:+.2%} of a step ({low:+.2%} to {high:+.2%}), {len(logs)} rounds")
    print(f"step {statistics.median(one['frozen'] for one in steps) * 1000:.2f} ms")
    print(f"requests: {answered} answered, {failed} failed")


def watch(folder: Path, options: argparse.Namespace) -> tuple[list[dict[str, float]], int, int]:
    """Run the script; the beginnings of the spans by round, and the requests that were answered
    and that failed."""
    terminal, stderr = pty.openpty()  # the live line is drawn on terminals only
    words = ["--live", "--prometheus", "0", "train.py", str(options.seconds + 10)]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "gpurun", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stderr=stderr,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(stderr)
    drawn: list[bytes] = []
    try:
        url = metrics_url(terminal)
        threading.Thread(target=drain, args=(terminal, drawn), daemon=True).start()
        found = spans(launcher.pid, url, options)
    finally:
        os.kill(launcher.pid, signal.SIGCONT)
        code = launcher.wait()
    if code:
        sys.exit(f"exit code {code}\n{b''.join(drawn).decode(errors='replace')[-3000:]}")
    return found


def metrics_url(terminal: int) -> str:
    """The address that the launcher prints."""
    text = ""
    while not (found := re.search(r"http://\S+/metrics", text)):
        try:
            text += os.read(terminal, 1 << 12).decode(errors="replace")
        except OSError:  # it has ended
            sys.exit(f"gpurun printed no address of metrics:\n{text[-3000:]}")
    return found[0]


def drain(terminal: int, drawn: list[bytes]) -> None:
    """Take what is drawn, or the launcher would wait."""
    with contextlib.suppress(OSError):
        while text := os.read(terminal, 1 << 16):
            drawn.append(text)


def spans(
    launcher: int, url: str, options: argparse.Namespace
) -> tuple[list[dict[str, float]], int, int]:
    """The spans of the run, in random order in each round."""
    draws, until = random.Random(options.seed), time.monotonic() + options.seconds
    rounds: list[dict[str, float]] = []
    counts = [0, 0]
    time.sleep(8.0)  # it has begun to train by then
    while time.monotonic() + len(KINDS) * SPAN_SECONDS < until:
        begins: dict[str, float] = {}
        for kind in draws.sample(KINDS, len(KINDS)):
            if kind == "frozen":
                os.kill(launcher, signal.SIGSTOP)
            begins[kind] = time.monotonic()
            rate = {"frozen": 0, "watched": 1, "scraped": options.scrapes}[kind]
            span(url, rate, begins[kind] + SPAN_SECONDS, counts)
            os.kill(launcher, signal.SIGCONT)
        rounds.append(begins)
    return rounds, counts[0], counts[1]


def span(url: str, rate: int, until: float, counts: list[int]) -> None:
    """Ask so often a second until then. `counts`: answered and failed."""
    due = time.monotonic()
    while (now := time.monotonic()) < until:
        if not rate or now < due:
            time.sleep(min(until, due if rate else until) - now)
            continue
        due += 1 / rate
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                counts[0 if answer.read() else 1] += 1
        except OSError:
            counts[1] += 1


def median_step(ends: list[float], begin: float) -> float | None:
    """The median step in a span, None where the script did not train."""
    first = bisect_left(ends, begin + EDGE_SECONDS)
    last = bisect_left(ends, begin + SPAN_SECONDS)
    steps = [b - a for a, b in zip(ends[first:last], ends[first + 1 : last], strict=False)]
    return statistics.median(steps) if steps else None


if __name__ == "__main__":
    main()
