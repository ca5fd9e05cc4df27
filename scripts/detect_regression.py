"""Is this tree slower than REF? `gpurun bench --compare REF`. Or: are stored results slower?

    python scripts/detect_regression.py REF [flags] [train.py args...]
    python scripts/detect_regression.py --results FILE [--baseline FILE] [--threshold 0.05] [flags]

For pipelines that call scripts. Flags and exit codes are those of `gpurun bench` (`--help`); often
used: `--threshold 5%`, `--max-pairs N`, `--budget 20m`, `--json FILE`, `--markdown FILE`,
`--export KIND=FILE`. `--results` launches nothing: it holds what `run_benchmark.py` has written
against the records of earlier commits, or against those in `--baseline FILE`. That is weaker.

Exit codes: 0 not slower, 1 a regression is proven, 2 wrong usage, 3 undecided, 4 no usable
baseline, 5 the benchmark failed, 6 the training differs (only with `--fail-on-training-change`),
130 interrupted. Nothing but 1 is a regression.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun import main

if __name__ == "__main__":
    words = sys.argv[1:]
    asked_for_help = words[:1] in (["--help"], ["-h"])
    stored = any(word.partition("=")[0] == "--results" for word in words)
    if not asked_for_help and not stored and words and words[0].startswith("-"):
        sys.stderr.write(
            f"detect_regression.py: REF comes first, before {words[0]}, or name --results FILE\n"
        )
        sys.exit(2)
    sys.exit(main(["bench", *([] if asked_for_help or stored else ["--compare"]), *words]))
