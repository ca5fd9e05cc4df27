"""Write the JSON Schemas of gpurun's documents to `gpurun/schemas/`; `--check` only compares."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.records.schema import all_schemas

FOLDER = Path(__file__).resolve().parent.parent / "gpurun" / "schemas"


def out_of_date(folder: Path = FOLDER) -> list[str]:
    """Names of the files that differ from the records, are missing, or are left over."""
    wanted = schema_texts()
    found = {path.name: path.read_text() for path in folder.glob("*.json")}
    return sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))


def schema_texts() -> dict[str, str]:
    """The text of each file."""
    return {n: json.dumps(s, indent=2, ensure_ascii=False) + "\n" for n, s in all_schemas().items()}


def main() -> int:
    """Write or check; exit 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if out of date")
    check = parser.parse_args().check
    stale = out_of_date()
    if not check:
        FOLDER.mkdir(exist_ok=True)
        for name in stale:
            (FOLDER / name).unlink(missing_ok=True)
            if name in schema_texts():
                (FOLDER / name).write_text(schema_texts()[name])
    verb = "is out of date" if check else "written"
    for name in stale:
        print(f"{name} {verb}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
