"""`python -m gpurun` and the `gpurun` command."""

from __future__ import annotations

import sys


def entry() -> None:
    """Exit with the code of `main`."""
    from gpurun.cli import main

    sys.exit(main(None))


if __name__ == "__main__":
    entry()
