"""A GPU that lets in one process, or that a service shares out, is an obstacle to live pairs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.pairs import obstacle
from gpurun.pairs.obstacle import sharing_obstacle


@pytest.mark.parametrize("mode", ["exclusive process", "prohibited"])
def test_a_gpu_for_one_process_cannot_be_shared(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstacle, "exclusive_gpu", lambda: mode)
    assert mode in sharing_obstacle({})


def test_a_running_mps_is_an_obstacle_and_a_stale_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstacle, "exclusive_gpu", lambda: "")
    monkeypatch.setattr(obstacle, "MPS_FOLDER", str(tmp_path))
    assert sharing_obstacle({}) == ""
    (tmp_path / obstacle.MPS_PID).write_text(f"{os.getpid()}\n")
    assert "MPS" in sharing_obstacle({})
    (tmp_path / obstacle.MPS_PID).write_text("999999999\n")
    assert sharing_obstacle({}) == ""
    assert "MPS" in sharing_obstacle({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"})
