"""Search a planted slow-down for real: `gpurun bench bisect` in a repository of 16 commits.

    python scripts/bisect_planted.py --work /tmp/bisect [--commits 16] [--repeats 1]

Each repository is made below `--work`; one of its commits, drawn by number, loses 8 % of the
throughput (`planted_slowdown.py`, body `waiting`), the others change a comment. Printed is whether
the search named that commit, after how many pairs and how long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.gate_runs import ENDLESS, REPOSITORY
from scripts.planted_slowdown import BODIES, git, make_repository

BODY = BODIES["waiting"]


def main() -> int:
    """Search and print; the exit code is 0 whatever was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the repositories")
    parser.add_argument("--commits", type=int, default=16, help="after the first, the good one")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    for repeat in range(options.repeats):
        folder = options.work / f"repository-{repeat}"
        shutil.rmtree(folder, ignore_errors=True)
        number = random.Random(repeat).randrange(1, options.commits + 1)
        planted = _repository(folder, options.commits, number)
        print(_searched(folder, planted, number, options), flush=True)
    return 0


def _repository(folder: Path, commits: int, number: int) -> str:
    """The first commit, and `commits` after it of which the one of this number is slower."""
    make_repository(folder, BODY, planted=False, files={})
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    planted = ""
    for one in range(1, commits + 1):
        depth = BODY.planted_depth if one >= number else BODY.depth
        (folder / "work.py").write_text(f"DEPTH = {depth}\n# change {one}\n")
        git(folder, "commit", "-q", "-a", "-m", f"change {one}")
        planted = git(folder, "rev-parse", "HEAD") if one == number else planted
    return planted


def _searched(folder: Path, planted: str, number: int, options: argparse.Namespace) -> str:
    found = options.work / "found.json"
    found.unlink(missing_ok=True)
    words = ["bench", "bisect", f"HEAD~{options.commits}..HEAD", "--json", str(found)]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", *words, "train.py", ENDLESS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    if not found.exists():
        return f"{folder.name}: no answer: {done.stderr}"
    report = json.loads(found.read_text())
    right = "right" if report["culprit"] == planted else f"wrong ({report['verdict']})"
    return (
        f"{folder.name}: commit {number} of {options.commits}: {right}, "
        f"{len(report['pairs'])} pairs, {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
