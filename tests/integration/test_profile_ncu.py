"""The second launch, under Nsight Compute. A stand-in for `ncu` shows pages that were recorded.

It runs the script. The real one ran on an H100 (`tests/data/h100_profiles/low_occupancy`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.launch.launch_command import write_spec
from gpurun.measure.run_events import read_run
from gpurun.profilers.ncu import Ncu, function_name
from gpurun.records.spec import ProfileSpec, RunSpec
from tests.conftest import REPOSITORY, Gpurun
from tests.run_events import run_in

PAGES = REPOSITORY / "tests" / "data" / "profiles"
TRAIN = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    open("steps.txt", "w").write(str(step))
"""
STAND_IN = f"""#!{sys.executable} -S
import pathlib, subprocess, sys
words = sys.argv[1:]
if words[0] == "--import":
    page = words[words.index("--page") + 1]
    print(pathlib.Path("{PAGES}", f"h200_ncu_{{page}}_mlp.csv").read_text(), end="")
    sys.exit()
report = words.index("-o") + 1
pathlib.Path(words[report]).with_name("words.txt").write_text("\\n".join(words[:report]))
if WORKS:
    pathlib.Path(words[report] + ".ncu-rep").touch()
    sys.exit(subprocess.run(words[report + 1:]).returncode)
print("==PROF== Connected")
print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")
sys.exit(1)
"""


@pytest.fixture
def run(tmp_path: Path, gpurun: Gpurun, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a plain run of the script, in the folder where it was started."""
    (tmp_path / "train.py").write_text(TRAIN)
    done = gpurun("train.py")
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    return run_in(tmp_path)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    tool = folder / "tools" / "ncu"
    tool.parent.mkdir()
    tool.write_text(STAND_IN.replace("WORKS", str(works)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")


def test_the_longest_kernels_of_one_step_are_looked_at_and_no_file_changes(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, works=True)
    (tmp_path / "steps.txt").write_text("as the run left it")
    kernels = [
        "void at::native::elementwise<4, float>(int)",
        "ncclDevKernel_AllReduce(int)",
        "void vllm::cross_device_reduce_1stage<float>(int)",
        "gemm",
    ]
    assert Ncu().after_run((sys.executable, "train.py"), os.environ, run, kernels)
    folder = run / "profile" / "ncu"
    assert "regex:^(elementwise|gemm)$" in (folder / "words.txt").read_text().splitlines()
    (log,) = read_run(folder).processes
    assert log.profile is not None
    assert log.profile.steps == 1
    assert (tmp_path / "steps.txt").read_text() == "as the run left it"
    timeline = Ncu().timeline(log, log.profile, run / "profile")
    assert timeline is not None
    assert timeline.kernel_metrics


def test_counters_that_may_not_be_read_are_said(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, works=False)
    with pytest.raises(GpurunError, match="ERR_NVGPUCTRPERM") as error:
        Ncu().after_run((sys.executable, "train.py"), os.environ, run, ["gemm"])
    assert "NVreg_RestrictProfilingToAdminUsers=0" in str(error.value.todo)


def test_without_kernels_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    write_spec(RunSpec(str(tmp_path), os.getpid()))
    with pytest.raises(GpurunError, match="no kernel was recorded"):
        Ncu().after_run((sys.executable, "train.py"), os.environ, tmp_path, [])


def test_kernels_launches_and_sections_are_those_that_were_asked_for(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, works=True)
    asked = ProfileSpec(("steps",), kernel="gemm|nvjet", launch_count=5, set="full")
    write_spec(replace(RunSpec(str(run), os.getpid()), profile=asked))
    assert Ncu().after_run((sys.executable, "train.py"), os.environ, run, [])
    words = (run / "profile" / "ncu" / "words.txt").read_text().splitlines()
    assert "regex:gemm|nvjet" in words
    assert words[words.index("--launch-count") + 1] == "5"
    assert words[words.index("--set") + 1] == "full"
    assert "Occupancy" in words, "findings need it"


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void at::native::elementwise<4, at::f(int)>(int, float)", "elementwise"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"),
        ("triton_poi_fused_relu_0", "triton_poi_fused_relu_0"),
    ],
)
def test_a_kernel_is_named_as_nsight_compute_matches_it(kernel: str, name: str) -> None:
    assert function_name(kernel) == name


def test_several_ranks_are_refused_before_they_start(
    tmp_path: Path, gpurun: Gpurun, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, works=True)
    path = {"PATH": os.environ["PATH"]}
    done = gpurun("profile", "--sources", "kineto,ncu", "--nproc-per-node", "2", "x.py", env=path)
    assert done.returncode == 2
    assert b"--sources ncu looks at one process" in done.stderr
