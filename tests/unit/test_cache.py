"""Under which command line tuned settings are found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.arguments import parse
from gpurun.records.tuning import SavedSettings
from gpurun.tuner import cache


def test_another_spelling_of_the_script_is_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    tuned, again = parse(["train.py", "--lr", "1"]), parse(["./train.py", "--lr", "1"])
    saved = SavedSettings({"tf32": True}, (), 2.0, cache.fingerprint_of(tuned), ("train.py",))
    cache.save(cache.place(tmp_path, tuned), saved)
    assert cache.load_tuned(tmp_path, again).settings == {"tf32": True}
