"""Find faster settings for a training script, prove them, and train: `gpurun --optimize`.

    python scripts/optimize_model.py [flags] train.py [args...]

For pipelines that call scripts. Flags and exit codes are those of `gpurun --optimize` (`--help`);
often used: `--tune-only`, `--budget 5m`, `--allow EFFECTS`, `--save-settings FILE`, `--json FILE`.

Exit codes: the script's own; with `--tune-only` 0 tuned (also when nothing is faster), 3 the budget
ended before proof, 5 the script fails by itself; 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun import main

if __name__ == "__main__":
    sys.exit(main(["--optimize", *sys.argv[1:]]))
