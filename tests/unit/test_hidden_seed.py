"""Ranks of one job draw from one seed, on whichever node they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.commands.ddp_ranks import parallel

ONE = Options(Target(TargetKind.SCRIPT, "train.py"), ddp=True)


def seed(*torchrun: str) -> int:
    return parallel(replace(ONE, torchrun=torchrun)).seed


def test_nodes_that_are_to_meet_have_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PET_NNODES", raising=False)
    meeting = ("--nnodes=2", "--rdzv-id=a", "--rdzv-endpoint=host:29500")
    assert seed(*meeting, "--node-rank=0") == seed("--node-rank=1", *meeting)
    assert seed(*meeting) != seed("--nnodes=2", "--rdzv-id=b", "--rdzv-endpoint=host:29500")


@pytest.mark.parametrize("flags", [(), ("--nproc-per-node=2",), ("--nnodes=1",)])
def test_each_run_on_one_node_has_a_seed_of_its_own(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PET_NNODES", raising=False)
    assert len({seed(*flags) for _ in range(20)}) > 1
