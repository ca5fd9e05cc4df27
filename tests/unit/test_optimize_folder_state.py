"""What counts as a change of the user's folder while trials run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.commands import optimize
from gpurun.commands.optimize import FolderState, TuningOutcome
from gpurun.errors import GpurunError
from tests.unit.report_records import tuning_report


def test_bytecode_of_our_own_modules_is_no_change_of_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README's first command runs in a checkout whose modules are imported for the first time."""
    package = tmp_path / "gpurun"
    package.mkdir()
    (package / "late.py").touch()
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(optimize, "PACKAGE", package)
    options = Options(target=Target(TargetKind.SCRIPT, "train.py", ()))
    before = FolderState(options, tmp_path / ".gpurun")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "late.cpython-311.pyc").touch()
    assert before.differences(FolderState(options, tmp_path / ".gpurun")) == ()
    (tmp_path / "train.py").write_text("changed")
    assert len(before.differences(FolderState(options, tmp_path / ".gpurun"))) == 1


def test_a_file_saved_while_tuning_ends_nothing_where_trials_cannot_have_written_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    options = Options(target=Target(TargetKind.SCRIPT, "train.py", ()))
    for mode, ends in (("overlay", False), ("landlock", True)):
        report = tuning_report(isolation=mode)
        tuned = cast(TuningOutcome, SimpleNamespace(report=report, changes=("new: notes.txt",)))
        with pytest.raises(GpurunError, match="notes") if ends else nullcontext():
            optimize._complain(tuned, [], options)
        assert ("notes.txt" in capfd.readouterr().err) is not ends
