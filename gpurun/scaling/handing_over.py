"""The records of a launch go from a node to the first one, and onto its clock.

Ranks are compared over the time in which all of them ran, by the wall clocks of their nodes. So
every time of day is shifted by what the first node has read of the other's clock.
"""

from __future__ import annotations

import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

from gpurun.measure.use import SAMPLES_FILE
from gpurun.records.samples import DeviceSample
from gpurun.trials.ending import AT_THE_END, rank_logs

TIME = "unix_time_ns"
STDERR = "stderr"
"""Name of a rank's output: its local rank and when it was last written stand behind it."""


def records_of(run_dir: Path) -> dict[str, str]:
    """What the first node needs of a launch, by name, compressed: events, what the devices did, and
    the end of each rank's stderr."""
    texts = {path.name: path.read_text(errors="surrogateescape") for path in _events(run_dir)}
    if (run_dir / SAMPLES_FILE).exists():
        lines = (run_dir / SAMPLES_FILE).read_text(errors="surrogateescape").splitlines(True)
        # of the host the first node samples its own: shares of different machines do not add up
        texts[SAMPLES_FILE] = "".join(x for x in lines if f'"{DeviceSample.kind}"' in x[:40])
    for rank, log in rank_logs(run_dir).items():
        texts[f"{STDERR} {rank} {log.stat().st_mtime_ns}"] = _end_of(log)
    # the mark of a record that ends early may be empty: the disk had no room for its text
    return {n: _packed(text) for n, text in texts.items() if text or n.endswith(".error")}


def keep_records(
    records: dict[str, str], run_dir: Path, node: int, ahead_ns: int, first_rank: int
) -> None:
    """Write a node's records into the run folder here. `ahead_ns`: of its clock before ours;
    `first_rank`: the number of its local rank 0 among all. OSError where there is no room."""
    for name, packed in records.items():
        text = _unpacked(packed)
        if name.startswith(f"{STDERR} "):
            _, local, moment_ns = name.split()
            rank = str(first_rank + int(local))
            log = run_dir / "ranks" / f"node{node}" / "attempt_0" / rank / "stderr.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(text, errors="surrogateescape")
            os.utime(log, ns=(int(moment_ns) - ahead_ns,) * 2)
            continue
        shifted = "".join(_on_our_clock(line, ahead_ns) for line in text.splitlines(True))
        own = os.path.basename(name)
        kept = own if own == SAMPLES_FILE else own.replace("events-", f"events-node{node}-", 1)
        with (run_dir / kept).open("a", errors="surrogateescape") as file:
            file.write(shifted)


def _events(run_dir: Path) -> Iterator[Path]:
    """The event files, and the marks of those that end early."""
    yield from sorted(run_dir.glob("events-*.jsonl*"))


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - AT_THE_END, 0))
        return file.read().decode(errors="surrogateescape")


def _on_our_clock(line: str, ahead_ns: int) -> str:
    if f'"{TIME}"' not in line:
        return line
    try:
        event = json.loads(line)
        event[TIME] -= ahead_ns
    except (ValueError, KeyError, TypeError):
        return line
    return json.dumps(event, separators=(",", ":")) + "\n"


def _packed(text: str) -> str:
    return b64encode(zlib.compress(text.encode("utf-8", "surrogateescape"))).decode()


def _unpacked(text: str) -> str:
    return zlib.decompress(b64decode(text)).decode("utf-8", "surrogateescape")
