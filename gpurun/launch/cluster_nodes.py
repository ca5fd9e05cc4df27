"""`--nnodes auto`: nodes and rendezvous from the environment that a cluster made.

Only on request. Without it a process that `srun` or an operator started is what it is under
torchrun: neither reads SLURM's variables, and a script that does (Lightning) finds them untouched.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpurun.arguments.torchrun_flags import is_given
from gpurun.errors import GpurunError
from gpurun.formatting.number_text import count

AUTO = "--nnodes=auto"
FIRST_PORT = 20_000
PORTS = 10_000
"""The rendezvous' port is drawn by the job's number from a range below the ephemeral ports."""

ONE_TASK_A_NODE = "srun --ntasks-per-node=1 gpurun --nnodes auto --nproc-per-node gpu ..."


@dataclass(frozen=True)
class Node:
    """This node's place among the nodes of a job, and where they meet."""

    count: int
    rank: int
    address: str
    port: int
    job: str


def with_nodes(torchrun: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """torchrun's flags with "auto" replaced by what the environment says; others as they are.

    A flag that was typed, or set by a `PET_*` variable, is kept. `GpurunError` where the
    environment does not tell.
    """
    typed = [word for word in torchrun if word.startswith("--nnodes=")]
    if typed[-1:] != [AUTO] and (typed or environment.get("PET_NNODES") != "auto"):
        return tuple(torchrun)
    node = node_of(environment)
    flags = [word for word in torchrun if not word.startswith("--nnodes=")]
    flags.append(f"--nnodes={node.count}")
    if node.count == 1:
        return tuple(flags)
    wanted = {
        "rdzv-backend": "c10d",
        "rdzv-endpoint": f"{node.address}:{node.port}",
        "rdzv-id": node.job,
        "rdzv-conf": f"is_host={int(node.rank == 0)}",
    }
    unsaid = {k: v for k, v in wanted.items() if not is_given(k, flags, environment)}
    return (*flags, *(f"--{name}={value}" for name, value in unsaid.items()))


def node_of(environment: Mapping[str, str]) -> Node:
    """This node by SLURM's variables, else by the plain ones of an operator such as Kubeflow's."""
    if "SLURM_JOB_ID" in environment:
        return _of_slurm(environment)
    plain = ("WORLD_SIZE", "RANK", "MASTER_ADDR")
    if all(environment.get(name) for name in plain):
        return Node(
            count=_number(environment, "WORLD_SIZE"),
            rank=_number(environment, "RANK"),
            address=environment["MASTER_ADDR"],
            port=_number(environment, "MASTER_PORT", 29500),
            job=environment.get("TORCHELASTIC_RUN_ID", "gpurun"),
        )
    raise GpurunError(
        "--nnodes auto: this is no step of SLURM, and WORLD_SIZE, RANK and MASTER_ADDR are not set",
        "write --nnodes N with --rdzv-endpoint HOST:PORT, or drop it for one node",
    )


def is_one_of_many(environment: Mapping[str, str]) -> int | None:
    """The tasks of the SLURM step that this process is one of; None for one, or outside a step."""
    if "SLURM_STEP_ID" not in environment:
        return None
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", 0) or _number(
        environment, "SLURM_NTASKS", 1
    )
    return tasks if tasks > 1 else None


def first_host(nodelist: str) -> str:
    """The first host of SLURM's compressed list: "gpu[003-007,9]-ib,login" → "gpu003-ib".

    Brackets hold numbers and ranges; leading zeros count.
    """
    host, inside = "", False
    for letter in nodelist:
        if letter == "," and not inside:
            break
        inside = (inside or letter == "[") and letter != "]"
        host += letter
    while "[" in host:
        before, _, rest = host.partition("[")
        numbers, _, after = rest.partition("]")
        host = before + numbers.split(",")[0].partition("-")[0] + after
    return host


def _of_slurm(environment: Mapping[str, str]) -> Node:
    tasks = is_one_of_many(environment) or 1
    name = "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environment else "SLURM_NNODES"
    nodes = _number(environment, name, 1)
    if "SLURM_STEP_ID" not in environment and nodes > 1:
        raise GpurunError(
            f"--nnodes auto: this is not a step of srun, so nothing runs on the other {nodes - 1}"
            " nodes of the job",
            ONE_TASK_A_NODE,
        )
    if tasks > nodes:
        raise GpurunError(
            f"--nnodes auto: {tasks} tasks on {count(nodes, 'node')}, and"
            " each would start ranks of its own",
            f"start one task a node: {ONE_TASK_A_NODE}",
        )
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    listed = listed or environment.get("SLURM_NODELIST", "")
    address = environment.get("MASTER_ADDR") or first_host(listed)
    if not address and nodes > 1:
        raise GpurunError(
            "--nnodes auto: SLURM_JOB_NODELIST is empty", "set MASTER_ADDR to the first node"
        )
    job = f"{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '0')}"
    drawn = FIRST_PORT + zlib.crc32(job.encode()) % PORTS
    return Node(
        count=nodes,
        rank=_number(environment, "SLURM_PROCID", 0),
        address=address,
        port=_number(environment, "MASTER_PORT", drawn),
        job=f"slurm-{job}",
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "")
    if text.isdigit():
        return int(text)
    if text or default is None:
        raise GpurunError(f"--nnodes auto: {name}={text} is not a number", "write --nnodes N")
    return default
