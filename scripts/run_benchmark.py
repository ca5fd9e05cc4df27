"""Measure a training script, or the benchmarks of gpurun.toml, and keep a record: `gpurun bench`.

    python scripts/run_benchmark.py [flags] [train.py args...]
    python scripts/run_benchmark.py --commit-sha SHA [--branch B] [--output FILE] [flags] [train.py]

For pipelines that call scripts. Flags and exit codes are those of `gpurun bench` (`--help`); often
used: `--launches N`, `--steps N`, `--json FILE`, `--export KIND=FILE`, `--store URL`, `--quiet`.
With `--commit-sha` the results are written to benchmark_results.json unless `--output` says where;
`detect_regression.py --results benchmark_results.json` judges them, also on another machine.

Exit codes: 0 measured, 2 wrong usage (SHA is not checked out, say), 5 the benchmark failed, 130
interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun import main

RESULTS = "benchmark_results.json"

if __name__ == "__main__":
    words = sys.argv[1:]
    of_commit = any(word.partition("=")[0] in ("--commit-sha", "--commit_sha") for word in words)
    sys.exit(main(["bench", *(["--json", RESULTS] if of_commit else []), *words]))
