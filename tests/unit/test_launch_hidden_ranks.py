"""How many ranks `--ddp` starts, and where they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.launch.hidden_ranks import hidden_flags


@pytest.mark.parametrize(
    ("flags", "variables", "ranks"),
    [
        (("--nproc-per-node=3",), {}, 3),
        ((), {"PET_NPROC_PER_NODE": "2"}, 2),
        (("--nproc-per-node", "3"), {"PET_NPROC_PER_NODE": "2"}, 3),
    ],
)
def test_the_flag_says_it_and_else_torchruns_variable(
    flags: tuple[str, ...], variables: dict[str, str], ranks: int
) -> None:
    assert hidden_flags(flags, None, variables)[1] == ranks


def test_without_either_there_are_as_many_as_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(GpurunError, match="the number of ranks is unknown without a GPU"):
        hidden_flags((), None, {})


def test_all_but_the_first_rank_print_into_files_unless_the_user_said_where(tmp_path: Path) -> None:
    flags, _ = hidden_flags(("--nproc-per-node=3",), tmp_path, {})
    assert flags[2:] == ("--redirects", "1:3,2:3", "--log-dir", str(tmp_path))
    said = ("--nproc-per-node=3", "--standalone", "--tee=3")
    assert hidden_flags(said, tmp_path, {})[0] == said


@pytest.mark.parametrize(
    ("flags", "variables", "own"),
    [
        ((), {}, True),
        (("--nnodes=2", "--rdzv_endpoint=host:1"), {}, False),
        (("--master-port=29501",), {}, False),
        ((), {"PET_RDZV_ENDPOINT": "host:1"}, False),
    ],
)
def test_ranks_of_one_node_meet_at_a_port_of_their_own(
    flags: tuple[str, ...], variables: dict[str, str], own: bool
) -> None:
    """torchrun's usual one may be another training's."""
    found, _ = hidden_flags(("--nproc-per-node=2", *flags), None, variables)
    assert ("--standalone" in found) == own
