"""Draw how drift cancels in a live pair: docs/live_pair.png, from a recorded pair.

    python scripts/drift_picture.py [--record] [--seconds 40]

With `--record` it first records a pair anew, beside a process that burns a core now and then (see
`disturbance.py`): two equal loops, of which one has two layers more, take turns; the recording is
kept in `scripts/recordings/drift.json`. The upper half of the picture shows the step time of either
side turn by turn, the lower one the ratio of each two neighbouring turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpurun.pairs.side import await_both
from gpurun.pairs.turn_taking import take_turns
from gpurun.report.plots.plot_style import (
    BETTER,
    LARGE,
    LEVEL,
    MEASURED,
    SMALL,
    USUAL,
    WORSE,
    new_figure,
    plain,
    save_png,
)
from scripts.bench_overhead import LOOP, launched
from scripts.disturbance import burning

REPOSITORY = Path(__file__).resolve().parents[1]
RECORDING = REPOSITORY / "scripts" / "recordings" / "drift.json"
PICTURE = REPOSITORY / "docs" / "live_pair.png"
BASELINE, SLOWER = (128, 23, 0), (128, 25, 0)
"""Shapes of the loops: width, layers and idle submodules."""
NEIGHBOURS = 9
"""A line through the points is the median of so many."""


@dataclass(frozen=True)
class RecordedRound:
    """A turn of each side: seconds since the start, and milliseconds a step of either."""

    at: float
    baseline: float
    current: float


def record(seconds: float) -> list[RecordedRound]:
    """Let two loops take turns for so long, disturbed."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "loop.py").write_text(LOOP)
        sides = (
            stack.enter_context(launched(folder, "baseline", True, BASELINE)),
            stack.enter_context(launched(folder, "current", True, SLOWER)),
        )
        await_both(sides)
        stack.enter_context(burning(True))
        began, ends = time.monotonic(), []

        def enough(rounds: object) -> bool:
            ends.append(time.monotonic() - began)
            return ends[-1] > seconds

        rounds = take_turns(sides, random.Random(0), enough)
    return [
        RecordedRound(round(at, 2), *(round(1000 * t.step_seconds, 3) for t in (r.first, r.second)))
        for at, r in zip(ends[1:], rounds, strict=True)
    ]


def draw(rounds: list[RecordedRound]) -> None:
    """Write the picture."""
    times = [one.at for one in rounds]
    figure = new_figure(6.5, 3.8)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for name, colour in (("baseline", MEASURED), ("current", WORSE)):
        steps = [getattr(one, name) for one in rounds]
        upper.plot(times, steps, ".", ms=2, color=colour, alpha=0.4)
        upper.plot(times, smooth(steps), lw=1.2, color=colour, label=name)
    upper.set_ylim(0, 1.5 * sorted(one.current for one in rounds)[int(0.95 * len(rounds))])
    upper.set_ylabel("ms a step", fontsize=USUAL)
    upper.set_title("Step times drift with the machine …", fontsize=LARGE, loc="left")
    upper.legend(loc="upper left", fontsize=SMALL, frameon=False, ncols=2)
    ratios = [100 * (one.current / one.baseline - 1) for one in rounds]
    lower.plot(times, ratios, ".", ms=2, color=BETTER, alpha=0.4)
    lower.plot(times, smooth(ratios), lw=1.2, color=BETTER)
    lower.axhline(median(ratios), color=LEVEL, lw=0.8)
    lower.set_ylim(median(ratios) - 60, median(ratios) + 60)
    lower.set_ylabel("current slower by, %", fontsize=USUAL)
    lower.set_xlabel("seconds", fontsize=USUAL)
    title = f"… the ratio of neighbouring turns does not (median {median(ratios):+.1f} %)"
    lower.set_title(title, fontsize=LARGE, loc="left")
    for axes in (upper, lower):
        plain(axes)
    save_png(figure, PICTURE)


def smooth(values: list[float]) -> list[float]:
    """The median of each value and its neighbours."""
    half = NEIGHBOURS // 2
    return [median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def main() -> None:
    """Record if asked, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--seconds", type=float, default=40.0, help="turns are recorded so long")
    options = parser.parse_args()
    if options.record:
        rows = [json.dumps(asdict(one)) for one in record(options.seconds)]
        RECORDING.parent.mkdir(exist_ok=True)
        RECORDING.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    draw([RecordedRound(**one) for one in json.loads(RECORDING.read_text())])


if __name__ == "__main__":
    main()
