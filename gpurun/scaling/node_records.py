"""Records of a launch that a node sends to the run folders of the other nodes.

Ranks are compared over the time in which all of them ran, by the wall clocks of their nodes. So
every time of day is moved by the difference of both clocks.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from gpurun.launch.exit_code import AT_THE_END
from gpurun.measure.resource_use import SAMPLES_FILE
from gpurun.records.codec import from_json, to_json
from gpurun.records.failure import Failure
from gpurun.records.parse_json import open_regular
from gpurun.records.samples import DeviceSample
from gpurun.trials.failure_cause import rank_logs

TIME = "unix_time_ns"


@dataclass(frozen=True)
class LaunchOutcome:
    """The end of a launch, on one node or on all. `given_up`: why it had to be ended from outside,
    None if it had not; the exit code is None then."""

    exit_code: int | None
    seconds: float
    given_up: Failure | None = None


@dataclass(frozen=True)
class NodeFile:
    """A file below the run folder. `modified_ns`: when it was last written."""

    path: str
    text: str
    modified_ns: int


@dataclass(frozen=True)
class NodeRecords:
    """The end of a node's part of a launch, and its records.

    `met_ns`: its wall clock when all nodes began the launch; `moment`: its monotonic clock at the
    end. `layered`: what the first launch wrote is there for later ones.
    """

    ended: LaunchOutcome
    met_ns: int
    moment: float
    layered: bool
    files: tuple[NodeFile, ...] = ()

    def pack(self) -> bytes:
        """The bytes that other nodes receive."""
        return zlib.compress(json.dumps(to_json(self)).encode())

    @staticmethod
    def unpack(data: bytes) -> NodeRecords:
        """The inverse of `pack`."""
        return from_json(NodeRecords, json.loads(zlib.decompress(data)))


def number_logs(run_dir: Path, first_rank: int) -> None:
    """Name the ranks' logs by their numbers among all ranks, as those of other nodes are.

    torch's agent names them by local ranks. `first_rank`: the number of local rank 0.
    """
    if first_rank:
        for rank, log in rank_logs(run_dir).items():
            log.parent.rename(log.parent.with_name(str(first_rank + rank)))


def files_of(run_dir: Path, node: int) -> tuple[NodeFile, ...]:
    """The records of this node's ranks: events, what the devices did, and the ends of their stderr.

    Paths are those in another node's run folder.
    """
    found = []
    for path in sorted(run_dir.glob("events-*.jsonl*")):
        found.append(_file(path, path.name.replace("events-", f"events-node{node}-", 1)))
    samples = run_dir / SAMPLES_FILE
    if samples.exists():
        # each node samples its own host: shares of different machines do not add up
        found.append(_file(samples, SAMPLES_FILE, only=f'"{DeviceSample.kind}"'))
    for rank, log in rank_logs(run_dir).items():
        there = f"ranks/node{node}/attempt_0/{rank}/stderr.log"
        found.append(_file(log, there, at_the_end=AT_THE_END))
    return tuple(found)


def keep_files(files: tuple[NodeFile, ...], run_dir: Path, ahead_ns: int) -> None:
    """Write another node's records into the run folder here. `ahead_ns`: of its clock before ours.

    OSError where there is no room.
    """
    for one in files:
        path = run_dir / one.path
        path.parent.mkdir(parents=True, exist_ok=True)
        moved = (_on_our_clock(line, ahead_ns) for line in one.text.splitlines(True))
        with path.open("a", errors="surrogateescape") as file:
            file.writelines(moved if one.path.endswith(".jsonl") else [one.text])
        os.utime(path, ns=(one.modified_ns - ahead_ns,) * 2)


def _file(path: Path, there: str, only: str = "", at_the_end: int | None = None) -> NodeFile:
    """The part of a file that another node needs: lines that begin with `only`, bytes
    `at_the_end`."""
    with open_regular(path) as file:
        if at_the_end is not None:
            file.seek(max(os.fstat(file.fileno()).st_size - at_the_end, 0))
        text = file.read().decode(errors="surrogateescape")
    if only:
        text = "".join(line for line in text.splitlines(True) if only in line[:40])
    return NodeFile(there, text, path.stat().st_mtime_ns)


def _on_our_clock(line: str, ahead_ns: int) -> str:
    if f'"{TIME}"' not in line:
        return line
    try:
        event = json.loads(line)
        event[TIME] -= ahead_ns
    except (ValueError, KeyError, TypeError):
        return line
    return json.dumps(event, separators=(",", ":")) + "\n"
