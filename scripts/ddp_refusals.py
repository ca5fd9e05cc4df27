"""Give `--ddp` scripts that it cannot train, and see that each is refused before it trains.

    python scripts/ddp_refusals.py [--only NAME,...] [--device cpu|cuda] [--keep DIR]

The scripts are those of `ddp_refusal_cases.py`; each trains by itself, which is tried first. It is
refused if gpurun exits with 2 and `verdict=refused`, says what is wrong and what to do, names the
line where there is one, says nowhere that the script failed, and no rank has taken a step in
earnest. The command fails if any is not.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.ddp_refusal_cases import CASES, Case
from scripts.ddp_runs import Run, ddp, environment, python

REFUSED = "refused"
FAILED = re.compile(r"script (itself )?fail|fails by itself|Traceback", re.IGNORECASE)


def faults(case: Case, run: Run) -> Iterator[str]:
    """What a refusal lacks."""
    said = run.lines
    if len(said) < 2:
        yield "names no cure"
    if FAILED.search(run.stderr):
        yield "says that the script failed"
    if case.line:
        text = case.script.splitlines()
        wanted = [str(n) for n, line in enumerate(text, 1) if case.line in line]
        assert wanted, f"no line has {case.line!r}"
        named = re.findall(r"(?:\.py:|line |lines )(\d+)", " ".join(said))
        if not set(wanted) & set(named):
            yield f"does not name line {wanted[0]}"


def verdict(case: Case, run: Run) -> str:
    """What became of a case, in a word or two."""
    if run.exit_code is None:
        return f"HUNG after {run.steps} steps"
    if run.steps:
        return f"TRAINED {run.steps} steps, exit {run.exit_code}"
    if run.refused:
        missing = ", ".join(faults(case, run))
        return f"{REFUSED}, but {missing}" if missing else REFUSED
    return f"FAILED with exit {run.exit_code}, verdict {run.verdict}"


def write(case: Case, folder: Path) -> Path:
    """The script's path."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(case.script)
    if case.part is not None:
        (folder / "part.py").write_text(case.part)
    return folder / "train.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="names of scripts, separated by commas")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--keep", type=Path, help="an empty folder for scripts and output")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(CASES)
    env = environment(options.device)
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            case, folder = CASES[name], (options.keep or Path(temporary)) / name
            if case.needs and importlib.util.find_spec(case.needs) is None:
                print(f"{name:20} left out: {case.needs} is not installed")
                continue
            one = python(write(case, folder / "1"), env=env)
            assert one.exit_code == 0, f"{name} fails by itself:\n{one.stderr}"
            assert one.steps, f"{name} trains nothing by itself"
            run = ddp(write(case, folder / "2"), 2, env)
            found = verdict(case, run)
            told["refused" if found == REFUSED else "not refused, or not as it should be"] += 1
            print(f"{name:20} {run.seconds:6.1f} s  {found}", flush=True)
            for line in run.lines[-4:]:
                print(f"{'':20}           | {line}", flush=True)
    print(f"{told.total()} scripts: " + ", ".join(f"{n} {word}" for word, n in told.items()))
    return int(set(told) != {"refused"})


if __name__ == "__main__":
    sys.exit(main())
