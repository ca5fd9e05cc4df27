"""gpurun: run an unmodified PyTorch training script, make it fast and prove it.

Importing this package costs nothing: what a command needs is imported by that command.
"""

from __future__ import annotations


def main(args: list[str] | None = None) -> int:
    """Run gpurun as if `args` had been typed after its name, and return the exit code."""
    from gpurun.cli import main as cli_main

    return cli_main(args)


def __getattr__(name: str) -> str:
    if name == "__version__":
        from gpurun.version import VERSION

        return VERSION
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
