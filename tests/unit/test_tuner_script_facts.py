"""What is learnt of a script from its first trial."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.measure import summarise_run
from gpurun.measure.run_events import read_run
from gpurun.records.events import ArgumentsEvent, OptimizerEvent, TraitEvent
from gpurun.records.facts import BatchFlag, Facts
from gpurun.tuner.script_facts import gather_facts, steps_per_epoch
from gpurun.tuner.search.search_state import SearchState
from tests.unit.knob_facts import MACHINE, result
from tests.unit.recorded_runs import end, loader, root, row, steady, steps, write_events
from tests.unit.tuner_trials import judge_of, trial

SCRIPT = "loader = DataLoader(data, args.batch_size)\n"


def learnt(folder: Path, *events: Any, kind: TargetKind = TargetKind.SCRIPT) -> Facts:
    """The facts of `train.py`, whose process wrote these events and then trained."""
    write_events(folder, [*events, root(), steady(40)])
    log = read_run(folder).processes[0]
    measured = summarise_run(folder, exit_code=0, wall_seconds=3.0)
    target = Target(kind, str(folder / "train.py"), ("--batch-size", "8"))
    return gather_facts(Options(target), MACHINE, measured, log)


def written(folder: Path, text: str, argument: str | None = "args.batch_size") -> Any:
    """A loader of batches of 8, built in `train.py` with this text."""
    script = folder / "train.py"
    script.write_text(text)
    return dataclasses.replace(loader(), in_script=True, batch_size_argument=argument)


def option(flag: str, value: Any, dest: str | None = None) -> dict[str, Any]:
    name = dest or flag.lstrip("-").replace("-", "_")
    return {"flags": [flag], "dest": name, "value": value}


def parsed(*options: dict[str, Any]) -> ArgumentsEvent:
    return ArgumentsEvent(options)


def test_only_the_loaders_that_feed_the_training_are_the_trainings(tmp_path: Path) -> None:
    evaluation = dataclasses.replace(loader(1), length=7)
    facts = learnt(tmp_path, loader(), evaluation)
    assert [x.loader for x in facts.loaders] == [0, 1]
    assert [x.loader for x in facts.loaders_of_training()] == [0]
    assert steps_per_epoch(read_run(tmp_path).processes[0]) == 100


def test_device_arguments_and_traits_are_the_scripts(tmp_path: Path) -> None:
    facts = learnt(tmp_path, loader(), TraitEvent("autocast", "train.py:5"))
    assert facts.device == "cpu"
    assert facts.argv == ("--batch-size", "8")
    assert facts.traits == {"autocast": "train.py:5"}
    assert facts.current == {}


def test_a_model_on_a_gpu_makes_it_the_device(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), root("cuda:1"), steady(40)])
    log = read_run(tmp_path).processes[0]
    options = Options(Target(TargetKind.SCRIPT, "train.py"))
    assert gather_facts(options, MACHINE, result(), log).device == "cuda"


def test_the_flag_that_feeds_the_loader_is_the_batch_size(tmp_path: Path) -> None:
    flags = parsed(option("--workers", 8), option("--chunk", 8, "batch_size"), option("--bs", 8))
    facts = learnt(tmp_path, flags, written(tmp_path, SCRIPT))
    assert facts.batch_flag == BatchFlag("--chunk", 8)


def test_a_flag_is_told_by_its_name_where_none_is_seen_to_feed_the_loader(tmp_path: Path) -> None:
    flags = parsed(option("--workers", 8), option("--eval-batch-size", 8), option("--bs", 8))
    facts = learnt(tmp_path, flags, written(tmp_path, SCRIPT, argument=None))
    assert facts.batch_flag == BatchFlag("--bs", 8)


def test_a_flag_with_another_value_or_another_meaning_is_no_batch_size(tmp_path: Path) -> None:
    flags = parsed(option("--batch-size", 16), option("--workers", 8), option("--val-batch", 8))
    facts = learnt(tmp_path, flags, written(tmp_path, SCRIPT, argument=None))
    assert facts.batch_flag is None


def test_other_readers_of_the_batch_size_are_found_in_the_script(tmp_path: Path) -> None:
    text = SCRIPT + "lr = 0.1 * args.batch_size\n"
    facts = learnt(tmp_path, written(tmp_path, text))
    assert facts.batch_uses == ("train.py:2: lr = 0.1 * args.batch_size",)


def test_where_the_loader_is_built_elsewhere_nobody_knows_who_reads_its_batch_size(
    tmp_path: Path,
) -> None:
    made = written(tmp_path, SCRIPT)
    library = dataclasses.replace(made, in_script=False)
    assert learnt(tmp_path, library).batch_uses is None
    assert learnt(tmp_path, made, kind=TargetKind.MODULE).batch_uses is None


def test_a_script_without_a_loader_has_neither_loaders_nor_batches_in_an_epoch(
    tmp_path: Path,
) -> None:
    write_events(tmp_path, [root(), steps([row(1000 + 10 * i, samples={}) for i in range(40)])])
    log = read_run(tmp_path).processes[0]
    options = Options(Target(TargetKind.SCRIPT, "train.py"))
    facts = gather_facts(options, MACHINE, result(), log)
    assert facts.loaders_of_training() == ()
    assert facts.batch_uses is None
    assert steps_per_epoch(log) is None


def test_settings_that_were_kept_are_what_later_knobs_build_on(tmp_path: Path) -> None:
    chosen, faster = {"loader_workers": 4}, trial(200.0)
    state = SearchState({}, trial(100.0), learnt(tmp_path, loader()), judge_of())
    state.move(chosen, faster)
    chosen["tf32"] = 1
    assert state.facts.current == {"loader_workers": 4}
    assert state.facts.result is faster.result


def test_torch_tells_of_the_gpu_that_the_model_is_on_whatever_nvml_says(tmp_path: Path) -> None:
    on_gpu = dataclasses.replace(
        root("cuda:1"), compute_capability=(7, 5), device_memory_bytes=15 << 30
    )
    machine = learnt(tmp_path, on_gpu).machine
    assert (machine.compute_capability, machine.gpu_memory_bytes) == ((7, 5), 15 << 30)
    other = learnt(tmp_path).machine
    assert (other.compute_capability, other.gpu_memory_bytes) == (None, None)


def test_where_no_module_is_called_the_optimizer_tells_the_device(tmp_path: Path) -> None:
    """A graph network that is trained by `model.encode(...)` has no root."""
    for device, expected in (("cuda:0", "cuda"), ("cpu", "cpu")):
        folder = tmp_path / expected
        folder.mkdir()
        adam = OptimizerEvent(1, "Adam", "torch.optim.adam", 4, 1, {}, device)
        write_events(folder, [adam, steady(40), end(allocated=42)])
        log = read_run(folder).processes[0]
        measured = summarise_run(folder, exit_code=0, wall_seconds=3.0)
        target = Target(TargetKind.SCRIPT, str(folder / "train.py"), ())
        assert gather_facts(Options(target), MACHINE, measured, log).device == expected
        assert (measured.peak_memory_bytes == 42) is (expected == "cuda")
