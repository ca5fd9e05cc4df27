"""Run `gpurun bench bisect` for real in histories of which one commit is slower, and count.

    python scripts/bisect_culprits.py --work /tmp/culprits [--searches 5] [--commits 16]
                                      [--body compute|cores|waiting|gpu] [--disturbed]

Each search is the command line itself, in a repository of its own below `--work`; the culprit, a
random commit, loses 8 % of the throughput (`--body gpu` 5 %). Its outcome is printed, and appended
to a file there at once. After an interruption the same command goes on in the middle of the search,
which keeps its own state; at its end it prints every outcome, how many culprits were found with the
95 % interval (binomial, Wilson), and the median seconds of searches that were not interrupted. It
asks for nothing, so that it can run in the background. The bar: 97 % of searches name the culprit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.disturbance import burning
from scripts.gate_runs import ENDLESS, LIMIT_SECONDS, gpurun_in, keep, rate
from scripts.planted_slowdown import BODIES, git, make_history


def search(folder: Path, options: argparse.Namespace, number: int) -> dict[str, object]:
    """The outcome of the search of this number; it goes on if it was interrupted."""
    planted = random.Random(number).randint(1, options.commits)
    if not folder.with_suffix(".ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        make_history(folder, BODIES[options.body], options.commits, planted, {})
        folder.with_suffix(".ready").touch()
    hashes = git(folder, "rev-list", "--reverse", "main").split()
    continued = (folder / ".gpurun").exists()
    words = ["-m", "gpurun", "bench", "bisect", f"{hashes[0]}..{hashes[-1]}", "--quiet"]
    began = time.monotonic()
    with burning(options.disturbed, seed=number):
        words += ["--json", "-", "train.py", ENDLESS]
        done = gpurun_in(folder, words, 4 * LIMIT_SECONDS)
    seconds = None if continued else time.monotonic() - began
    found = json.loads(done.stdout) if done.stdout else {"verdict": "failed", "culprit": None}
    if found["verdict"] == "failed":
        print(done.stderr, file=sys.stderr)
    return {
        "search": number,
        "planted": planted,
        "verdict": found["verdict"],
        "named": hashes.index(found["culprit"]) if found["culprit"] else None,
        "pairs": len(found.get("pairs", ())),
        "seconds": seconds,
        "load": os.getloadavg()[0],
    }


def main() -> int:
    """Run what is still to be run, and print; the exit code is 0 whatever was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of repositories, outcomes")
    parser.add_argument("--searches", type=int, default=5)
    parser.add_argument("--commits", type=int, default=16)
    parser.add_argument("--body", choices=sorted(BODIES), default="compute")
    parser.add_argument("--disturbed", action="store_true", help="beside a process that burns")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    name = f"{options.body}-{options.commits}{'-disturbed' if options.disturbed else ''}"
    kept = options.work / f"{name}.jsonl"
    known = [json.loads(x) for x in kept.read_text().splitlines()] if kept.exists() else []
    for number in range(len(known), options.searches):
        known.append(search(options.work / f"{name}-{number}", options, number))
        keep(kept, known[-1])
        print(known[-1], flush=True)
    print("", *known, sep="\n")
    whole = [one["seconds"] for one in known if one["seconds"] is not None]
    print(f"named: {rate([one['named'] == one['planted'] for one in known])}")
    print(f"wrong: {rate([one['named'] not in (None, one['planted']) for one in known])}")
    print(f"median seconds: {f'{median(whole):.0f}' if whole else 'unknown'}")
    print(f"median pairs: {median(one['pairs'] for one in known):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
