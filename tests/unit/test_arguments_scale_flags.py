"""The flags of `--scale`, what is there to run on, and what is refused before any launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.arguments.options import Target, TargetKind
from gpurun.errors import GpurunError
from gpurun.scaling.rank_devices import CORES, RankDevices
from gpurun.scaling.scaling_requests import by_source, spawns_by_source

GPUS = RankDevices("NVIDIA H200", ("2", "3", "5"), 48.0)
CPU = RankDevices(CORES, (), 2.5)


def test_counts_rise_and_what_follows_the_script_is_the_scripts() -> None:
    options = parse(["--scale=4,1, 2", "--strong", "--budget", "5m", "train.py", "--scale", "9"])
    assert options.scale is not None
    assert options.scale.counts == (1, 2, 4)
    assert options.scale.strong
    assert options.budget_seconds == 300
    assert options.target.args == ("--scale", "9")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--scale", "0"], "--scale: '0' is no count"),
        (["--scale", "2,x"], "--scale: 'x' is no count"),
        (["--scale", "1,-2"], "--scale: '-2' is no count"),
        (["--scale", "1,²"], "--scale: '²' is no count"),
        (["--scale", "1,"], "--scale: '' is no count"),
        (["--scale", "1,2,2"], "--scale: 2 is there twice"),
        (["--scale", "cnn.py"], "--scale needs counts of devices, not cnn.py"),
        (["--scale", "2"], "--scale 2 is one count only"),
        (["--scale", "1,2", "--rounds", "0"], "--rounds '0' is not a count"),
        (["--scale", "1,2", "--optimize"], "--optimize is not for --scale"),
        (["--scale", "1,2", "--max-trials", "3"], "--max-trials needs --optimize"),
        (["--strong"], "--strong needs --scale"),
        (["--plot", "x.png"], "--plot needs --scale"),
        (["--budget", "5m"], "--budget needs --optimize"),
    ],
)
def test_a_wrong_flag_is_an_error_with_a_cure(words: list[str], what: str) -> None:
    with pytest.raises(GpurunError) as raised:
        parse([*words, "train.py"], {})
    assert raised.value.what.startswith(what)
    assert raised.value.todo


@pytest.mark.parametrize("word", ["cnn.py", "--help"])
def test_counts_that_were_left_out_are_asked_for(word: str) -> None:
    with pytest.raises(GpurunError, match=f"--scale needs counts of devices, not {word}"):
        parse(["--scale", word], {})


def test_counts_above_the_devices_are_refused_by_name() -> None:
    CPU.check((1, 2), oversubscribe=False)
    GPUS.check((1, 3), oversubscribe=False)
    with pytest.raises(GpurunError, match=r"4 is above the 3 GPUs \(NVIDIA H200\)"):
        GPUS.check((1, 2, 4), oversubscribe=False)
    with pytest.raises(GpurunError, match="4, 8 are above the 2 CPU cores"):
        CPU.check((1, 4, 8), oversubscribe=False)
    CPU.check((1, 4, 8), oversubscribe=True)


def test_ranks_see_their_gpus_alone_and_more_ranks_than_gpus_take_them_in_turn() -> None:
    base = {"CUDA_VISIBLE_DEVICES": "2,3,5,7"}
    assert GPUS.environment(1, base)["CUDA_VISIBLE_DEVICES"] == "2"
    assert GPUS.environment(3, base)["CUDA_VISIBLE_DEVICES"] == "2,3,5"
    assert GPUS.environment(4, base)["CUDA_VISIBLE_DEVICES"] == "2,3,5,2"
    assert "CUDA_VISIBLE_DEVICES" not in CPU.environment(2, {})


def test_cores_are_divided_unless_the_user_has_said_how_many() -> None:
    assert "OMP_NUM_THREADS" not in CPU.environment(1, {})
    assert GPUS.environment(3, {})["OMP_NUM_THREADS"] == "16"
    assert CPU.environment(4, {})["OMP_NUM_THREADS"] == "1"
    assert CPU.environment(2, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_a_job_around_gpurun_does_not_reach_its_launches() -> None:
    around = {"RANK": "3", "MASTER_PORT": "1", "PET_NPROC_PER_NODE": "8", "HOME": "/root"}
    assert CPU.environment(1, around) == {"HOME": "/root"}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('nccl')", "init_process_group"),
        ("from torch.nn.parallel import DistributedDataParallel as D", "DistributedDataParallel"),
        ("from accelerate import Accelerator", "accelerate"),
        ("import lightning.pytorch as pl", "lightning.pytorch"),
        ("from transformers import AutoModel, Trainer", "transformers.Trainer"),
    ],
)
def test_a_script_that_is_distributed_by_itself_is_recognised(
    tmp_path: Path, text: str, hint: str
) -> None:
    (tmp_path / "train.py").write_text("import engine\n")
    (tmp_path / "engine.py").write_text(text)
    found = by_source(Target(TargetKind.SCRIPT, str(tmp_path / "train.py")))
    assert found == f"engine.py uses {hint}"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nmodel = torch.nn.DataParallel(net)",
        "from transformers import AutoModel",
        "name = 'init_process_group'",
        "not python at all (",
    ],
)
def test_a_script_for_one_device_is_not_taken_for_another(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert by_source(Target(TargetKind.SCRIPT, str(tmp_path / "train.py"))) is None


@pytest.mark.parametrize(
    ("source", "starts"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)", True),
        ("from torch.multiprocessing import spawn\nspawn(work)", True),
        ("import numpy as np\nnp.random.SeedSequence(3).spawn(2)", False),
    ],
)
def test_a_script_that_starts_its_ranks_itself_is_known(
    tmp_path: Path, source: str, starts: bool
) -> None:
    script = tmp_path / "train.py"
    target = Target(TargetKind.SCRIPT, str(script))
    script.write_text(source)
    assert spawns_by_source(target) is None  # it may have other work for them
    script.write_text(f"import torch.distributed as dist\ndist.init_process_group()\n{source}")
    assert (spawns_by_source(target) is not None) == starts
