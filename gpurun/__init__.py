"""gpurun: run an unmodified PyTorch training script, make it fast and prove it.

Importing this package costs nothing: what a command needs is imported by that command.
"""

from __future__ import annotations

__version__ = "0.1.0"


def main(args: list[str] | None = None) -> int:
    """Run gpurun as if `args` had been typed after its name, and return the exit code."""
    from gpurun.cli import main as cli_main

    return cli_main(args)
