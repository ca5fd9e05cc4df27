"""`--nnodes auto`: nodes and their meeting place, from what a cluster put in the environment."""

from __future__ import annotations

import pytest

from gpurun.errors import GpurunError
from gpurun.launch.cluster_nodes import first_host, is_one_of_many, with_nodes

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "gpu[007-009,12]",
    "SLURM_NTASKS": "4",
    "SLURM_NNODES": "4",
    "SLURM_PROCID": "2",
}
PLAIN = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "2222"}


def flags(*words: str, **environment: str) -> dict[str, str]:
    resolved = with_nodes(words, environment)
    return dict(word[2:].split("=", 1) for word in resolved)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"),
        ("gpu[003-007,9]-ib,login", "gpu003-ib"),
        ("a[1,3],b2", "a1"),
        ("rack[2-3]n[01-16]", "rack2n01"),
        ("10.0.0.7,10.0.0.8", "10.0.0.7"),
        ("", ""),
    ],
)
def test_first_host_of_a_compressed_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_every_task_of_a_step_meets_at_the_first_node() -> None:
    nodes = [flags("--nnodes=auto", **{**STEP, "SLURM_PROCID": str(n)}) for n in range(4)]
    assert [node.pop("rdzv-conf") for node in nodes] == ["is_host=1", *["is_host=0"] * 3]
    assert all(node == nodes[0] for node in nodes)
    host, _, port = nodes[0]["rdzv-endpoint"].partition(":")
    assert (nodes[0]["nnodes"], nodes[0]["rdzv-backend"], host) == ("4", "c10d", "gpu007")
    assert 20_000 <= int(port) < 30_000


def test_two_steps_of_one_job_do_not_meet() -> None:
    one, other = (flags("--nnodes=auto", **{**STEP, "SLURM_STEP_ID": s}) for s in "01")
    assert one["rdzv-id"] != other["rdzv-id"]
    assert one["rdzv-endpoint"] != other["rdzv-endpoint"]


def test_what_was_typed_or_set_is_kept() -> None:
    asked = ("--nnodes=auto", "--rdzv-endpoint=there:1", "--nproc-per-node=8")
    kept = flags(*asked, **STEP, PET_RDZV_ID="mine")
    assert (kept["rdzv-endpoint"], kept["nproc-per-node"]) == ("there:1", "8")
    assert "rdzv-id" not in kept
    assert flags("--nnodes=auto", **STEP, MASTER_ADDR="h", MASTER_PORT="9")["rdzv-endpoint"] == (
        "h:9"
    )


def test_nothing_is_read_from_the_environment_unless_asked() -> None:
    assert with_nodes(("--nproc-per-node=8",), STEP) == ("--nproc-per-node=8",)
    assert with_nodes(("--nnodes=2",), {**PLAIN, "PET_NNODES": "auto"}) == ("--nnodes=2",)


def test_plain_variables_of_an_operator_and_the_pet_variable() -> None:
    found = flags(**PLAIN, PET_NNODES="auto")
    assert (found["nnodes"], found["rdzv-endpoint"]) == ("2", "head:2222")


def test_a_job_of_one_node_needs_no_meeting_place() -> None:
    alone = {"SLURM_JOB_ID": "1", "SLURM_NNODES": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}
    assert flags("--nnodes=auto", **alone) == {"nnodes": "1"}


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({}, "no step of SLURM"),
        ({**PLAIN, "WORLD_SIZE": "two"}, "WORLD_SIZE=two is not a number"),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "32"}, "32 tasks on 4 nodes"),
        ({"SLURM_JOB_ID": "1", "SLURM_NNODES": "4", "SLURM_PROCID": "0"}, "not a step of srun"),
        ({**STEP, "SLURM_STEP_NODELIST": ""}, "NODELIST is empty"),
    ],
)
def test_what_the_environment_does_not_tell_is_refused(
    environment: dict[str, str], what: str
) -> None:
    with pytest.raises(GpurunError, match=what) as refused:
        with_nodes(("--nnodes=auto",), environment)
    assert refused.value.todo


def test_only_a_task_among_others_is_one_of_many() -> None:
    assert is_one_of_many(STEP) == 4
    assert is_one_of_many({**STEP, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert is_one_of_many({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}) is None
