"""Record a run folder for the tests: everything that was measured, packed, without a path of ours.

    python scripts/record_run.py .gpurun/runs/20260102-030405-abcdef NAME [--root FOLDER ...]

writes `tests/data/h200/NAME.tar.xz` (`--into` another folder). A run or a whole tuning is taken as
it is; nothing is rounded. Two things are left out: the handshake of trials, and all but the end of
the script's output. The folder of the script and the one that holds `.gpurun` become `/recorded`
everywhere. If another absolute path is left, it is named and nothing is written: say what to do
with it by `--root`.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import re
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

INTO = Path(__file__).resolve().parent.parent / "tests" / "data" / "h200"
KEPT = ("*.json", "*.jsonl", "*.jsonl.error", "*.json.error", "report.md", "output.log", "ncu.csv")
LEFT_OUT = ("control", "cache", "layer", "ncu")
MOST_BYTES = 600_000
OUTPUT_BYTES = 8192
"""The end of a trial's output that is kept: it explains a failure."""
STAND_IN = "/recorded"
ABSOLUTE = re.compile(r"(?<![\w.:~<)\]}/*-])/(?:[\w.+@-]+/)+[\w.+@-]*")


class NotRecorded(Exception):
    """Why nothing was written."""


def record(folder: Path, name: str, into: Path, roots: Iterable[str] = ()) -> Path:
    """Pack a run folder; the file that was written."""
    texts = {path.relative_to(folder): _text(path) for path in _files(folder)}
    if not texts:
        raise NotRecorded(f"{folder} holds no record")
    known = sorted({*roots, *_roots(texts)}, key=len, reverse=True)
    for path, text in texts.items():
        for root in known:
            text = text.replace(f"{root.rstrip('/')}/", f"{STAND_IN}/")
        texts[path] = text
    left = {found for text in texts.values() for found in ABSOLUTE.findall(text)}
    left = {path for path in left if not path.startswith(f"{STAND_IN}/")}
    if left:
        raise NotRecorded(f"absolute paths are left: {', '.join(sorted(left)[:5])}")
    packed = _packed(name, texts)
    if len(packed) > MOST_BYTES:
        raise NotRecorded(f"{len(packed):,} bytes packed: more than {MOST_BYTES:,}")
    into.mkdir(parents=True, exist_ok=True)
    target = into / f"{name}.tar.xz"
    target.write_bytes(packed)
    return target


def _files(folder: Path) -> list[Path]:
    found = {path for pattern in KEPT for path in folder.rglob(pattern) if path.is_file()}
    return sorted(p for p in found if not set(p.relative_to(folder).parts) & set(LEFT_OUT))


def _text(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".log":
        content = content[-OUTPUT_BYTES:]
    return content.decode("utf-8", "replace")


def _roots(texts: dict[Path, str]) -> set[str]:
    """The folder in which gpurun was started and that of the script, as the records name them."""
    roots = set()
    for path, text in texts.items():
        if path.name == "spec.json":
            home, mark, _ = json.loads(text)["run_dir"].partition("/.gpurun/")
            roots |= {home} if mark else set()
        if path.name in ("result.json", "tuning.json"):
            command = json.loads(text).get("command") or [""]
            roots |= {str(PurePosixPath(command[0]).parent)} if command[0][:1] == "/" else set()
    return roots - {"/", ""}


def _packed(name: str, texts: dict[Path, str]) -> bytes:
    """The same bytes for the same records, whenever and by whomever."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in sorted(texts.items()):
            content = text.encode("utf-8")
            member = tarfile.TarInfo(str(PurePosixPath(name, *path.parts)))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return lzma.compress(whole.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> int:
    parser = argparse.ArgumentParser(description="Record a run folder for the tests.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--root", action="append", default=[], help="a folder to call /recorded")
    options = parser.parse_args()
    try:
        target = record(options.folder, options.name, options.into, options.root)
    except NotRecorded as reason:
        print(f"not recorded: {reason}", file=sys.stderr)
        return 1
    print(f"{target}: {target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
