"""Reports of NVIDIA's tools are converted by these tools; stand-ins of them convert here."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.timeline.recordings import read_recordings

DATA = Path(__file__).resolve().parents[1] / "data" / "profiles"


def stand_in(folder: Path, tool: str, script: str) -> Path:
    """A folder for PATH with a program of the tool's name, and beside it a report."""
    programs = folder / "programs"
    programs.mkdir()
    program = programs / tool
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return programs


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.nsys-rep"
    path.touch()
    return path


def test_a_report_of_nsight_systems_is_exported_and_read(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "where"
    copy = f'cp {DATA}/h200_nsys2025_mlp.sqlite "$8"; echo "$8" > {kept}'
    programs = stand_in(tmp_path, "nsys", copy)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (timeline,) = read_recordings([report])
    assert len(timeline.kernels or ()) == 1616
    assert not Path(kept.read_text().strip()).exists()


def test_a_report_of_nsight_compute_is_exported_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mlp.ncu-rep"
    path.touch()
    programs = stand_in(tmp_path, "ncu", f'cat {DATA}/h200_ncu_"$5"_mlp.csv')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    (timeline,) = read_recordings([path])
    assert len(timeline.kernel_metrics or ()) == 6


def test_what_nsight_compute_says_of_a_report_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mlp.ncu-rep"
    path.touch()
    says = "echo '==ERROR== The report is of a newer version'; echo '==PROF== bye'; exit 1"
    monkeypatch.setenv("PATH", f"{stand_in(tmp_path, 'ncu', says)}:/usr/bin:/bin")
    with pytest.raises(GpurunError, match=r"mlp.ncu-rep cannot be read: The report is of a newer"):
        read_recordings([path])


def test_a_tool_that_exports_nothing_is_an_error_of_one_line(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = stand_in(tmp_path, "nsys", "echo; echo 'unknown report version' >&2; exit 0")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    with pytest.raises(GpurunError, match=r"mlp.nsys-rep cannot be read: unknown report version"):
        read_recordings([report])


@pytest.mark.parametrize("name", ["--output=x.nsys-rep", "--import=y.ncu-rep"])
def test_a_report_that_is_named_like_an_option_reaches_the_tool_as_a_path(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = stand_in(tmp_path, name.rpartition(".")[2][:-4], f'echo "$@" > {tmp_path}/words')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    Path(name).touch()
    with pytest.raises(GpurunError):
        read_recordings([Path(name)])
    assert f" {tmp_path / name}" in (tmp_path / "words").read_text()
