"""Train scripts of many losses as one process and under `--ddp`, and compare their weights.

    python scripts/ddp_losses.py [--only NAME,...] [--ranks 2,3] [--device cpu|cuda] [--keep DIR]
    python scripts/ddp_losses.py --loops ...

The scripts are those of `ddp_loss_cases.py` and `ddp_noise_cases.py`, or with `--loops` of
`ddp_loop_cases.py`. Each must train the same weights, or be refused before it trains, or say
that it differs. A difference is that of the weights at the end, by the way that one process has
moved them: twice the gradient is a difference near 1. The command fails if any training differs in
silence, fails or hangs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import runpy
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import ddp_loop_cases, ddp_loss_cases
from scripts.ddp_noise_cases import NOISY
from scripts.ddp_runs import Run, ddp, environment

LOSSES, LOOPS = {**ddp_loss_cases.CASES, **NOISY}, ddp_loop_cases.CASES
CASES = {**LOSSES, **LOOPS}
SAME = 1e-4
NOISE = 3.0
"""A training with noise of its own may differ by so many times what other noise changes."""
MOST_NOISE = 0.3
"""Half of the gradient, or twice, would be further apart than this."""
BAD = ("DIFFERS IN SILENCE", "FAILED", "HUNG")


@dataclass(frozen=True)
class Judged:
    """One script on so many ranks."""

    name: str
    ranks: int
    verdict: str
    difference: float | None
    said: str
    run: Run


def weights(path: Path) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return {name: value.double() for name, value in found.items()}


def difference(start: Path, one: Path, other: Path, *, overall: bool = False) -> float:
    """How far the weights of two trainings are apart, by the way that the first has gone.

    Of the tensor that is furthest apart, or of all weights as one vector where noise is at work.
    """
    begin, first, second = weights(start), weights(one), weights(other)
    assert list(first) == list(second), "the checkpoints have other keys"
    moved = [(first[name] - begin[name]).flatten() for name in first]
    apart = [(first[name] - second[name]).flatten() for name in first]
    if overall:
        ratios = [norm(apart) / norm(moved)]
    else:
        floor = 1e-3 * max(m.abs().max().item() for m in moved)  # what hardly moves is no measure
        assert floor > 0, "the script trained nothing"
        ratios = [
            a.abs().max().item() / max(m.abs().max().item(), floor)
            for a, m in zip(apart, moved, strict=True)
        ]
    return float("inf") if any(math.isnan(ratio) for ratio in ratios) else max(ratios)


def norm(vectors: list[Any]) -> float:
    return math.sqrt(sum(vector.pow(2).sum().item() for vector in vectors))


def alone(name: str, folder: Path, seed: str | None) -> Path:
    """The weights' file of one process, forked from this one, which has imported torch."""
    import torch

    folder.mkdir(parents=True)
    (folder / "train.py").write_text(CASES[name])
    child = os.fork()
    if not child:
        try:
            os.chdir(folder)
            sys.argv = ["train.py", *([seed] if seed else [])]
            torch.set_num_threads(1)
            with contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path("train.py", run_name="__main__")
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, f"{name} fails by itself"
    return folder / "out.pt"


def judged(
    name: str, ranks: int, folder: Path, one: Path, within: float, env: dict[str, str]
) -> Judged:
    """Run a script on ranks and compare it with one process."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(CASES[name])
    run = ddp(folder / "train.py", ranks, env)
    said = " / ".join(run.lines)
    if run.exit_code is None:
        return Judged(name, ranks, "HUNG", None, said, run)
    if run.refused:
        return Judged(name, ranks, "refused", None, said, run)
    if run.exit_code != 0:
        return Judged(name, ranks, "FAILED", None, f"exit {run.exit_code}: {said}", run)
    start, noisy = one.parent / "start.pt", name in NOISY
    apart = difference(start, one, folder / "out.pt", overall=noisy)
    if apart <= within:
        if apart > MOST_NOISE:
            return Judged(name, ranks, "lost in its noise", apart, said, run)
        return Judged(name, ranks, "equal", apart, said, run)
    verdict = "differs, warned" if said else "DIFFERS IN SILENCE"
    return Judged(name, ranks, verdict, apart, said, run)


def row(judged: Judged) -> str:
    apart = "" if judged.difference is None else f"{judged.difference:.1e}"
    cost = judged.run.probe_seconds
    probe = "" if cost is None else f"{cost:.1f} s"
    times = f"{judged.run.seconds:6.1f} s {probe:>7}"
    line = f"{judged.name:26}{judged.ranks:>3}  {judged.verdict:18} {apart:>8} {times}"
    return f"{line}  {judged.said}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="names of scripts, separated by commas")
    parser.add_argument("--loops", action="store_true", help="what users do around a step instead")
    parser.add_argument("--ranks", default="2,3")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--keep", type=Path, help="an empty folder for scripts, output and weights")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(LOOPS if options.loops else LOSSES)
    counts = [int(count) for count in options.ranks.split(",")]
    env = environment(options.device)
    os.environ.update(env)
    results: list[Judged] = []
    print(f"{'loss':24}ranks  {'':18} {'apart':>8} {'took':>8} {'probe':>7}  what gpurun said")
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            folder = (options.keep or Path(temporary)) / name
            one, within = alone(name, folder / "1", None), SAME
            if name in NOISY:
                others = [alone(name, folder / f"1-{seed}", seed) for seed in ("8", "9")]
                start = one.parent / "start.pt"
                spread = [difference(start, one, other, overall=True) for other in others]
                within = NOISE * max(spread)
            for ranks in counts:
                place = folder / str(ranks)
                found = judged(name, ranks, place, one, within, env)
                results.append(found)
                print(row(found), flush=True)
    told = Counter(result.verdict for result in results)
    print(f"{len(results)} trainings: " + ", ".join(f"{n} {word}" for word, n in told.items()))
    return int(any(result.verdict in BAD for result in results))


if __name__ == "__main__":
    sys.exit(main())
