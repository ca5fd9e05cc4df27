"""Measure a training script, or the benchmarks of gpurun.toml, and keep a record: `gpurun bench`.

    python scripts/run_benchmark.py [flags] [train.py args...]

For pipelines that call scripts. Flags and exit codes are those of `gpurun bench` (`--help`); often
used: `--launches N`, `--steps N`, `--json FILE`, `--export KIND=FILE`, `--store URL`, `--quiet`.

Exit codes: 0 measured, 2 wrong usage, 5 the benchmark failed, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
