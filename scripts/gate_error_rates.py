"""Run `gpurun bench --compare` for real on equal trees and on slower ones, and count.

    python scripts/gate_error_rates.py --work /tmp/gate [--equal 60] [--planted 40] [--disturbed]
                                       [--body compute|cores|waiting|gpu] [--in-turn]

Each comparison is the command line itself, in a scratch repository below `--work`; its outcome is
printed, and appended to a file there at once. After an interruption the same command goes on with
the first comparison that is missing; at its end it prints every outcome, the rates with their 95 %
intervals (binomial, Wilson) and the median seconds. It asks for nothing, so that it can run in the
background; a comparison is given up after an hour.

The slower trees lose 8 % of the throughput, with `--body gpu` 5 %. `--disturbed`: beside a process
that burns a core in bursts of 1 to 20 s, half of the time; outcomes have a file of their own.
`--in-turn` measures the same trees by launches in turn as well. Bars, on two cores and disturbed:
of 60 equal trees at least 54 pass and at most one is called a regression, of 40 slower ones at
least 38 are; at the median in at most 90 s, undisturbed in 60 s.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.gate_runs import Tool, arguments, compare_all, compare_by_gpurun, compare_in_turn


def main() -> int:
    """Run and print; the exit code is 0 whatever was found."""
    parser = arguments(__doc__)
    parser.add_argument("--in-turn", action="store_true", help="by launches in turn, too")
    options = parser.parse_args()
    tools: dict[str, Tool] = {"gpurun": compare_by_gpurun}
    if options.in_turn:
        tools["gpurun in turn"] = compare_in_turn
    compare_all(options, tools)
    return 0


if __name__ == "__main__":
    sys.exit(main())
