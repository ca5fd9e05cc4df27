"""How many ranks `--ddp` starts, and where they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.launch.hidden import hidden_flags


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
    with pytest.raises(GpurunError, match="there is no GPU to count ranks by"):
        hidden_flags((), None, {})


def test_all_but_the_first_rank_print_into_files_unless_the_user_said_where(tmp_path: Path) -> None:
    flags, _ = hidden_flags(("--nproc-per-node=3",), tmp_path, {})
    assert flags[1:] == ("--redirects", "1:3,2:3", "--log-dir", str(tmp_path))
    said = ("--nproc-per-node=3", "--tee=3")
    assert hidden_flags(said, tmp_path, {})[0] == said
