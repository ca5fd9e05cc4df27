"""Run `gpurun bench --compare` for real on equal trees and on slower ones, and count.

    python scripts/gate_error_rates.py --work /tmp/gate [--equal 60] [--planted 40]
                                       [--body waiting|compute|gpu] [--steps N]

Each comparison is the command line itself, in a scratch repository below `--work`; its result is
appended to a file there at once, and a second call goes on where the first ended. A launch takes
about 5 s, of which importing torch is most. The slower trees lose 10 % of the throughput, with
`--body gpu` 5 %. Bars: of 60 equal trees none is called a regression, of 40 slower ones all are. On
a machine with other work on it expect inconclusive verdicts with `--body compute`; `--steps` makes
launches longer.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.gate_runs import arguments, compare_all, compare_by_gpurun


def main() -> int:
    """Run and print; the exit code is 0 whatever was found."""
    compare_all(arguments(__doc__).parse_args(), {"gpurun": compare_by_gpurun})
    return 0


if __name__ == "__main__":
    sys.exit(main())
