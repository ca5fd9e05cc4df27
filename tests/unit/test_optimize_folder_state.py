"""What counts as a change of the user's folder while trials run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.commands import optimize
from gpurun.commands.optimize import FolderState


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
