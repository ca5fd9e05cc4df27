"""Write README's table of flags anew, from the flags of `gpurun/arguments/options.py`."""

from __future__ import annotations

from pathlib import Path

from gpurun.arguments.flag_table import markdown_rows
from gpurun.arguments.main_flags import MAIN

README = Path(__file__).parents[1] / "README.md"
HEAD = "| flag | meaning | page |\n|---|---|---|\n"


def main() -> None:
    """Replace the rows below the table's head."""
    before, _, rest = README.read_text().partition(HEAD)
    after = rest[rest.index("\n\n") + 1 :]
    README.write_text(f"{before}{HEAD}{markdown_rows(MAIN.values())}{after}")


if __name__ == "__main__":
    main()
