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
from gpurun.errors import ExitCode, GpurunError
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


@pytest.mark.parametrize(("mode", "ends"), [("overlay", False), ("landlock", True)])
@pytest.mark.parametrize("proven", [True, False])
def test_a_file_saved_while_tuning_ends_it_only_where_a_trial_may_have_changed_it(
    capfd: pytest.CaptureFixture[str], mode: str, ends: bool, proven: bool
) -> None:
    """Another training that saves its model in the same folder, say: no bug of gpurun's."""
    options = Options(target=Target(TargetKind.SCRIPT, "train.py", ()))
    fields = {"report": tuning_report(isolation=mode), "changes": ("changed: model.pt (time)",)}
    outcome = SimpleNamespace(settings={"tf32": True} if proven else None, **fields)
    with pytest.raises(GpurunError) if ends else nullcontext() as raised:
        optimize._complain(cast(TuningOutcome, outcome), [], options)
    if raised is None:
        said = "gpurun: changed by you or another program while tuning, trials cannot: changed: "
        assert capfd.readouterr().err == f"{said}model.pt (time)\n"
        return
    assert raised.value.code == ExitCode.USAGE
    assert raised.value.what.startswith("files changed while tuning, by another program or by a ")
    assert raised.value.what.endswith(": changed: model.pt (time)")
    assert ("--tuned" in raised.value.todo) is proven
