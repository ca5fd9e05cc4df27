"""The launcher's look at a run goes on where one of its consumers fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from gpurun.commands.live_outputs import LiveOutputs, RunSampling
from gpurun.measure.resource_use import SAMPLES_FILE


class Failing:
    """Live outputs whose server has died."""

    beside = ()
    looks = 0

    def tick(self) -> None:
        self.looks += 1
        raise RuntimeError("the server is gone")


def test_samples_go_on_where_live_figures_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpurun.commands.live_outputs.uses_torch", lambda run: True)
    outputs = Failing()
    sampling = RunSampling(tmp_path, cast(LiveOutputs, outputs))
    for _ in range(2):
        sampling.tick(os.getpid())
    sampling.close()
    assert outputs.looks == 1
    assert (tmp_path / SAMPLES_FILE).read_text().count("\n") >= 1
    assert capsys.readouterr().err.count("no live figures from here on: RuntimeError") == 1
