"""What each knob proposes, given what the probe saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpurun.knobs import find
from gpurun.knobs.api import Skip
from gpurun.knobs.device_requirements import missing_tool
from gpurun.knobs.loading.loader_workers import numbers_for_turns
from gpurun.knobs.memory.allocator import CHOSEN
from gpurun.records.facts import Facts, WorkerRate
from gpurun.records.result import EpochPace, HostUse
from tests.unit.knob_facts import (
    GIB,
    H200,
    LOADER,
    OPTIMIZER,
    ROOT,
    facts,
    gpu_facts,
    loader,
    result,
)


def proposed(knob: str, ground: Facts) -> list[Any]:
    values = find(knob).candidates(ground)
    assert not isinstance(values, Skip), values
    return list(values)


def skipped(knob: str, ground: Facts) -> str:
    values = find(knob).candidates(ground)
    assert isinstance(values, Skip), values
    return values.reason


class TestLoaderWorkers:
    def test_the_first_guess_hides_the_measured_wait_not_the_number_of_cores(self) -> None:
        assert proposed("loader_workers", facts(result=result(10, 20)))[0] == 2
        assert proposed("loader_workers", facts(result=result(30, 40)))[0] == 4

    def test_beside_a_gpu_all_cores_but_two_load_for_the_step_is_to_become_much_shorter(
        self,
    ) -> None:
        assert proposed("loader_workers", gpu_facts(result=result(2, 20))) == [14]
        assert proposed("loader_workers", gpu_facts(result=result(190, 200))) == [20]
        large = gpu_facts(machine=replace(H200, cores=192.0))
        assert proposed("loader_workers", large) == [32]
        half_tuned = gpu_facts(result=result(30, 100), **loader(workers=2))
        assert proposed("loader_workers", half_tuned) == [14]

    def test_the_number_is_bounded_and_divided_among_ranks(self) -> None:
        endless = result(1000, 1001)
        assert max(proposed("loader_workers", facts(result=endless))) == 32
        shared = facts(result=replace(endless, ranks=4))
        assert max(proposed("loader_workers", shared)) == 8

    def test_what_turns_found_to_be_enough_is_tried_in_place_of_the_guess(self) -> None:
        rates = tuple(WorkerRate(n, 100.0 * min(n, 3), 0.01) for n in (1, 2, 4, 8))
        assert proposed("loader_workers", facts(worker_rates=rates)) == [4]
        assert proposed("loader_workers", facts(worker_rates=())) == [4]
        present = facts(worker_rates=rates, **loader(workers=4))
        assert skipped("loader_workers", present) == "4 are enough"
        idle = {"result": result(0.1, 40), "worker_rates": rates}
        assert proposed("loader_workers", facts(**idle, **loader(workers=8))) == [4, 0]

    def test_turns_have_all_numbers_for_which_there_is_memory(self) -> None:
        assert numbers_for_turns(facts()) == (1, 2, 4, 8, 16, 32)
        assert numbers_for_turns(facts(**loader(workers=6))) == (1, 2, 4, 6, 8, 16, 32)
        large = result(host=HostUse(100.0, 8.0, 3 * GIB, 1))
        assert numbers_for_turns(facts(result=large)) == (1, 2, 4, 8, 10)
        crowded = facts(result=result(0.1, 40), **loader(workers=8))
        assert numbers_for_turns(crowded) == (1, 2, 4, 8)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"result": result(0.1, 40)}, "does not wait"),
            (loader(iterable=True), "an iterable data set"),
            (loader(start_method="spawn"), "starts slowly"),
            ({"result": result(ranks=2)}, "several ranks"),
            ({"result": result(epoch_pace=EpochPace(60.0, 1.0))}, "another pace"),
        ],
    )
    def test_scripts_whose_numbers_cannot_take_turns(
        self, changes: dict[str, Any], reason: str
    ) -> None:
        refused = numbers_for_turns(facts(**changes))
        assert isinstance(refused, Skip)
        assert reason in refused.reason

    @pytest.mark.parametrize("waits", [(), (0.1, 40)])
    @pytest.mark.parametrize("workers", [0, 1, 8])
    def test_a_stream_keeps_its_workers(self, workers: int, waits: tuple[float, ...]) -> None:
        present = facts(result=result(*waits), **loader(iterable=True, workers=workers))
        skipped("loader_workers", present)

    def test_no_wait_means_no_trial(self) -> None:
        assert "does not wait" in skipped("loader_workers", facts(result=result(0.1, 40)))

    def test_needless_workers_on_short_cores_are_taken_back(self) -> None:
        ground = facts(result=result(0.1, 40), **loader(workers=8))
        assert proposed("loader_workers", ground) == [4, 0]
        beside = gpu_facts(result=result(0.1, 40), **loader(workers=16))
        assert proposed("loader_workers", beside) == [8, 0]
        assert not find("loader_workers").is_likely(beside), "other changes may need all of them"
        assert find("loader_workers").is_likely(gpu_facts(result=result(10, 20)))

    def test_a_wait_that_was_not_measured_is_no_ground(self) -> None:
        assert "not measured" in skipped("loader_workers", facts(result=result(None)))

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"training_loaders": ()}, "no DataLoader"),
            ({"traits": {"cuda_batches": "a.py:3#0 / train.py:8#0"}}, "on the GPU already"),
            (
                {"traits": {"no_guard": ""}, **loader(start_method="spawn")},
                "no __main__ guard",
            ),
            (loader(subclass=True, class_name="GraphLoader"), "GraphLoader is a subclass"),
        ],
    )
    def test_loaders_that_cannot_have_workers(self, changes: dict[str, Any], reason: str) -> None:
        assert reason in skipped("loader_workers", facts(**changes))

    def test_a_missing_guard_does_not_matter_to_forked_workers(self) -> None:
        assert proposed("loader_workers", facts(traits={"no_guard": ""}))


class TestOtherLoaderKnobs:
    def test_prefetch_and_persistence_need_workers(self) -> None:
        assert "no workers" in skipped("loader_prefetch", facts())
        assert "no workers" in skipped("loader_persistent", facts())

    def test_workers_chosen_by_now_count(self) -> None:
        ground = facts(current={"loader_workers": 4})
        assert proposed("loader_prefetch", ground) == [4]
        assert proposed("loader_persistent", ground) == [True]

    def test_where_workers_and_model_keep_all_cores_busy_no_more_work_is_asked_for(self) -> None:
        def seen(steady: float | None, others: float | None = None) -> dict[str, Any]:
            host = HostUse(700.0, 8.0, GIB, 3, others, steady_cpu_percent=steady)
            return {"result": result(10, 20, host=host), "machine": replace(H200, cores=8.0)}

        for steady in (None, 750.0):
            ground = facts(**loader(workers=2), **seen(steady))
            assert proposed("loader_workers", ground) == [4]
            assert proposed("loader_prefetch", ground) == [4]
        for knob in ("loader_workers", "loader_prefetch"):
            assert "all cores busy (7.8 of 8)" in skipped(
                knob, facts(**loader(workers=2), **seen(780.0))
            )
            assert "(7.9 of 8, with other programs)" in skipped(
                knob, facts(**loader(workers=2), **seen(750.0, 40.0))
            )
        alone = facts(**seen(780.0))
        assert proposed("loader_workers", alone), "the model computes what workers could load"

    @pytest.mark.parametrize(
        ("share", "busy", "tried", "in_a_set"),
        [
            (0.3, True, True, True),
            (0.2, True, True, False),
            (0.2, False, True, True),
            (0.04, True, False, False),
            (0.04, False, True, True),
        ],
    )
    def test_workers_on_the_cores_of_a_model_must_find_enough_to_save(
        self, share: float, busy: bool, tried: bool, in_a_set: bool
    ) -> None:
        host = HostUse(150.0, 8.0, GIB, 1, steady_cpu_percent=790.0 if busy else 400.0)
        ground = facts(
            result=result(100.0 * share, 100.0, host=host), machine=replace(H200, cores=8.0)
        )
        knob = find("loader_workers")
        assert knob.is_likely(ground) is in_a_set
        if tried:
            assert proposed("loader_workers", ground)
        else:
            assert skipped("loader_workers", ground) == (
                "the step waits for data for 4% of its time only"
            )

    def test_prefetch_goes_up_from_what_the_script_has(self) -> None:
        assert proposed("loader_prefetch", facts(**loader(workers=2, prefetch_factor=4))) == [8]

    def test_prefetch_is_doubled_while_that_gains(self) -> None:
        knob = find("loader_prefetch", ())
        assert [knob.refine(facts(), value, 1.2) for value in (4, 8)] == [8, None]

    def test_starting_workers_is_lost_in_long_epochs(self) -> None:
        ground = facts(**loader(workers=2, length=100_000))
        assert "epochs are long" in skipped("loader_persistent", ground)

    def test_pinning_is_for_gpus_and_for_loaders_that_do_not_pin(self) -> None:
        assert "not on a GPU" in skipped("loader_pin_memory", facts())
        assert proposed("loader_pin_memory", gpu_facts()) == [True]
        assert "already" in skipped("loader_pin_memory", gpu_facts(**loader(pin_memory=True)))
        on_gpu = gpu_facts(traits={"cuda_batches": "train.py:8#0"})
        assert "on the GPU already" in skipped("loader_pin_memory", on_gpu)

    def test_shared_memory_is_used_again_where_forked_workers_feed_a_gpu(self) -> None:
        assert "not on a GPU" in skipped("loader_buffers", facts(**loader(workers=2)))
        assert "no workers" in skipped("loader_buffers", gpu_facts())
        assert proposed("loader_buffers", gpu_facts(current={"loader_workers": 4})) == ["reuse"]
        spawned = gpu_facts(**loader(workers=2, start_method="spawn"))
        assert "not forked" in skipped("loader_buffers", spawned)
        on_gpu = gpu_facts(traits={"cuda_batches": "train.py:8#0"}, **loader(workers=2))
        assert "on the GPU already" in skipped("loader_buffers", on_gpu)

    @pytest.mark.parametrize("knob", ["loader_buffers", "device_prefetch"])
    def test_what_needs_pinned_batches_brings_them_along(self, knob: str) -> None:
        pinned = gpu_facts(**loader(workers=2, pin_memory=True))
        chosen = gpu_facts(current={"loader_pin_memory": True})
        asked = find(knob).companions
        assert asked(gpu_facts(), "any") == {"loader_pin_memory": True}
        assert (asked(pinned, "any"), asked(chosen, "any")) == ({}, {})

    def test_the_scripts_own_copies_are_staged_where_no_loader_hands_out_batches(self) -> None:
        alone = gpu_facts(loaders=(), training_loaders=())
        assert proposed("async_copies", alone) == ["stage"]
        assert "DataLoader feeds" in skipped("async_copies", gpu_facts())
        assert "not on a GPU" in skipped("async_copies", facts(loaders=(), training_loaders=()))

    @pytest.mark.parametrize("knob", ["loader_workers", "loader_pin_memory"])
    def test_batches_on_the_gpu_of_another_loader_are_no_matter(self, knob: str) -> None:
        ground = gpu_facts(traits={"cuda_batches": "train.py:8#1 / train.py:20#0"})
        assert proposed(knob, ground) == proposed(knob, gpu_facts())


class TestCpuThreads:
    def test_values_come_from_our_cores_and_workers(self) -> None:
        ground = facts(threads=64, current={"loader_workers": 2})
        assert proposed("cpu_threads", ground) == [8, 6, 4]

    def test_ranks_share_the_cores(self) -> None:
        ground = facts(threads=8, result=replace(result(), ranks=4))
        assert proposed("cpu_threads", ground) == [2, 1]

    def test_never_a_blanket_one(self) -> None:
        assert 1 not in proposed("cpu_threads", facts(threads=64))

    def test_a_gpu_training_is_left_alone_unless_the_host_is_crowded(self) -> None:
        assert "cores to spare" in skipped("cpu_threads", gpu_facts(threads=16))
        crowded = replace(result(), host=HostUse(1590.0, 16.0, GIB, 9))
        assert proposed("cpu_threads", gpu_facts(threads=16, result=crowded)) == [4]
        by_others = HostUse(590.0, 16.0, GIB, 9, others_cpu_percent=1000.0)
        shared = replace(result(), host=by_others)
        assert proposed("cpu_threads", gpu_facts(threads=16, result=shared)) == [4]

    def test_openmp_reads_its_variable_before_python_starts(self) -> None:
        environment = find("cpu_threads").environment(6)
        assert environment == {"OMP_NUM_THREADS": "6", "MKL_NUM_THREADS": "6"}


class TestHostAllocator:
    def test_it_is_for_hosts_that_compute_or_prepare_what_the_model_waits_for(self) -> None:
        assert proposed("host_allocator", facts()) == ["keep"]
        assert proposed("host_allocator", gpu_facts()) == ["keep"]
        fed = replace(result(), split=replace(result().split, data_wait_ms=0.0))
        assert "does not wait" in skipped("host_allocator", gpu_facts(result=fed))

    @pytest.mark.parametrize("name", ["LD_PRELOAD", "MALLOC_TRIM_THRESHOLD_"])
    def test_another_choice_of_allocator_stands(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, "1")
        assert skipped("host_allocator", facts()) == f"{name} is set already"


class TestAllocator:
    @pytest.fixture(autouse=True)
    def _nothing_is_chosen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in CHOSEN:
            monkeypatch.delenv(name, raising=False)

    def used(self, allocated: float, reserved: float, retries: int = 0) -> Facts:
        """Facts of a training on an H200 with these peaks, in GiB."""
        return gpu_facts(
            result=result(
                peak_memory_bytes=int(allocated * GIB),
                peak_reserved_bytes=int(reserved * GIB),
                allocator_retries=retries,
            )
        )

    def test_fragmentation_and_retries_are_its_ground(self) -> None:
        assert proposed("allocator", self.used(60, 100)) == ["expandable_segments"]
        both = ["expandable_segments", "max_split_512"]
        assert proposed("allocator", self.used(130, 135, retries=3)) == both

    def test_memory_that_is_put_to_use_is_none(self) -> None:
        assert "not fragmented" in skipped("allocator", self.used(95, 100))
        assert "not fragmented" in skipped("allocator", self.used(0.1, 0.5))

    def test_what_was_not_measured_is_none_either(self) -> None:
        assert "not measured" in skipped("allocator", gpu_facts())
        assert "not on a GPU" in skipped("allocator", facts())

    @pytest.mark.parametrize("name", CHOSEN)
    def test_what_somebody_has_set_stands(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(name, "1")
        assert skipped("allocator", self.used(60, 100)) == f"{name} is set already"
        assert find("allocator").environment("expandable_segments") == {}

    @pytest.mark.parametrize(
        ("torch", "variable"),
        [
            ("2.4.1+cu121", "PYTORCH_CUDA_ALLOC_CONF"),
            ("2.9.1", "PYTORCH_CUDA_ALLOC_CONF"),
            ("2.11.0+cu130", "PYTORCH_ALLOC_CONF"),
            ("3.0.0", "PYTORCH_ALLOC_CONF"),
        ],
    )
    def test_each_torch_gets_the_variable_that_it_heeds(
        self, torch: str, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.metadata.version", lambda name: torch)
        environment = find("allocator").environment("expandable_segments")
        assert environment == {variable: "expandable_segments:True"}


class TestDeviceKnobs:
    @pytest.mark.parametrize("knob", ["needless_sync", "tf32", "cudnn_benchmark", "channels_last"])
    def test_they_are_for_models_on_a_gpu(self, knob: str) -> None:
        assert skipped(knob, facts()) == "the model is not on a GPU"

    def test_synchronisation_is_skipped_where_the_script_was_seen_to_synchronise(self) -> None:
        assert "does not call" in skipped("needless_sync", gpu_facts())
        seen = gpu_facts(traits={"synchronize": "train.py:9"})
        assert proposed("needless_sync", seen) == ["skip"]

    def test_a_forward_is_computed_again_unless_it_is_for_memory(self) -> None:
        assert "no forward again" in skipped("needless_recompute", gpu_facts())
        traits = {"recomputes": "torch.utils.checkpoint"}
        assert proposed("needless_recompute", gpu_facts(traits=traits)) == ["skip"]
        for short in ({"objective": "memory"}, {"out_of_memory": True}):
            assert "memory" in skipped("needless_recompute", gpu_facts(traits=traits, **short))

    def test_each_looks_for_what_it_acts_on(self) -> None:
        (dense,) = gpu_facts().roots
        images = replace(dense, module_types={"Conv2d": 3, "Linear": 1})
        halves = replace(dense, dtypes=("bfloat16",))
        for knob in ("cudnn_benchmark", "channels_last"):
            assert "convolution" in skipped(knob, gpu_facts(roots=(dense,)))
            assert proposed(knob, gpu_facts(roots=(images,))) == [True]
        assert proposed("tf32", gpu_facts(roots=(dense,))) == [True]
        assert "no float32" in skipped("tf32", gpu_facts(roots=(halves,)))

    def test_a_compilers_own_order_of_memory_is_left_alone(self) -> None:
        images = replace(gpu_facts().roots[0], module_types={"Conv2d": 3})
        chosen = gpu_facts(roots=(images,), current={"compile": "default"})
        scripts_own = gpu_facts(roots=(images,), traits={"compile": "train.py:9"})
        for ground in (chosen, scripts_own):
            assert "compiled" in skipped("channels_last", ground)


class TestEvaluationFusion:
    IMAGES = replace(ROOT, module_types={"Conv2d": 3, "BatchNorm2d": 3, "Linear": 1})
    EVALUATION = replace(LOADER, key="train.py:9#0")

    def ground(self, **changes: Any) -> Facts:
        return facts(**{"roots": (self.IMAGES,), "loaders": (LOADER, self.EVALUATION), **changes})

    def test_it_needs_something_to_fold_and_an_evaluation(self) -> None:
        assert proposed("evaluation_fusion", self.ground()) == [True]
        assert "no batch norm" in skipped("evaluation_fusion", self.ground(roots=(ROOT,)))
        assert "no loader" in skipped("evaluation_fusion", self.ground(loaders=(LOADER,)))

    def test_scripts_that_only_infer_need_no_loader(self) -> None:
        inference = self.ground(loaders=(), training_loaders=(), result=result(clock="forward"))
        assert proposed("evaluation_fusion", inference) == [True]

    def test_compiled_models_are_left_alone(self) -> None:
        for changes in (
            {"current": {"compile": "default"}},
            {"traits": {"compile": "train.py:7"}},
            {"roots": (replace(self.IMAGES, compiled=True),)},
        ):
            assert "compile" in skipped("evaluation_fusion", self.ground(**changes))


class TestNumericsKnobs:
    @pytest.mark.parametrize("trait", ["autocast", "grad_scaler"])
    def test_the_scripts_own_precision_wins(self, trait: str) -> None:
        assert "itself" in skipped("autocast", gpu_facts(traits={trait: "train.py:9"}))

    def test_half_precision_parameters_are_left_alone(self) -> None:
        half = replace(ROOT, dtypes=("bfloat16", "float32"))
        assert "half-precision" in skipped("autocast", gpu_facts(roots=(half,)))

    def test_bfloat16_needs_hardware_for_it(self) -> None:
        assert proposed("autocast", gpu_facts()) == ["bf16"]
        pascal = replace(H200, compute_capability=(6, 1))
        assert "no tensor cores" in skipped("autocast", gpu_facts(machine=pascal))

    @pytest.mark.parametrize("capability", [(7, 0), (7, 5)])
    def test_older_tensor_cores_are_told_of_float16_which_is_asked_for_by_hand(
        self, capability: tuple[int, int]
    ) -> None:
        older = replace(H200, compute_capability=capability)
        assert "needs --settings" in skipped("autocast", gpu_facts(machine=older))
        scaled = gpu_facts(machine=older, traits={"grad_scaler": "train.py:9"})
        assert "itself" in skipped("autocast", scaled)

    def test_a_script_that_compiles_is_left_alone(self) -> None:
        assert "by itself" in skipped("compile", facts(traits={"compile": "train.py:7"}))
        assert "by itself" in skipped("compile", facts(roots=(replace(ROOT, compiled=True),)))

    def test_a_script_that_differentiates_gradients_is_not_compiled(self) -> None:
        said = skipped("compile", facts(traits={"double_backward": "train.py:7"}))
        assert said.startswith("train.py:7: create_graph=True")

    @pytest.mark.parametrize(
        ("trait", "detail"),
        [("keeps_tensors", "mask"), ("changing_shapes", "6 shapes in 9 calls")],
    )
    def test_a_model_whose_tensors_or_shapes_forbid_it_is_compiled_without_cuda_graphs(
        self, trait: str, detail: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gpurun.knobs.compile.missing_tool", lambda *_: None)
        seen = gpu_facts(traits={trait: detail})
        assert proposed("compile", seen) == ["default"]
        assert not find("compile").is_likely(seen)
        assert find("compile").is_likely(gpu_facts())

    @pytest.mark.parametrize("knob", ["tf32", "channels_last", "cudnn_benchmark", "autocast"])
    def test_what_waits_for_a_root_module_is_not_tried_without_one(self, knob: str) -> None:
        """A graph network that calls `encode`: two of six trials on an H200 did nothing."""
        assert skipped(knob, gpu_facts(roots=())) == "no module is called while training"

    def test_attention_is_replaced_where_it_was_seen_written_by_hand(self) -> None:
        seen = {"manual_attention": "in the backward graph of a root"}
        assert proposed("attention", facts(traits=seen)) == ["sdpa"]
        assert "was seen" in skipped("attention", facts())
        for trait in ("compile", "data_parallel"):
            assert skipped("attention", facts(traits={**seen, trait: "train.py:1"}))

    def test_the_loss_is_fused_on_top_of_autocast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpurun.knobs.fused_loss.missing_tool", lambda device, capability: None)
        under = gpu_facts(current={"autocast": "bf16"})
        assert proposed("fused_loss", under) == ["cross_entropy"]
        assert "autocast is off" in skipped("fused_loss", gpu_facts())
        compiled = replace(under, traits={"compile": "train.py:7"})
        assert "by itself" in skipped("fused_loss", compiled)
        assert find("fused_loss").order > find("autocast").order, "so that it sees its choice"

    def test_compiling_needs_its_compiler(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        monkeypatch.setenv("CXX", str(tmp_path / "absent-c++"))
        assert "no C++ compiler" in skipped("compile", facts())

    @pytest.mark.parametrize(
        ("capability", "present", "reason"),
        [
            ((6, 1), {"triton", "gcc"}, "no kernels for this GPU (compute capability 6.1"),
            ((9, 0), {"gcc"}, "Triton is not installed"),
            ((9, 0), {"triton"}, "no C compiler (gcc or clang)"),
            ((9, 0), {"triton", "clang"}, None),
            (None, {"triton", "gcc"}, None),
        ],
    )
    def test_compiling_for_a_gpu_needs_triton_and_what_triton_needs(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capability: tuple[int, int] | None,
        present: set[str],
        reason: str | None,
    ) -> None:
        def find(name: str) -> Any:
            return name if name in present else None

        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr("gpurun.knobs.device_requirements.importlib.util.find_spec", find)
        monkeypatch.setattr("gpurun.knobs.device_requirements.shutil.which", find)
        told = missing_tool("cuda", capability)
        assert told is None if reason is None else told is not None and reason in told

    def test_cuda_graphs_are_not_tried_under_gradient_accumulation(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gpurun.knobs.compile.missing_tool", lambda device, capability: None)
        assert proposed("compile", gpu_facts()) == ["reduce-overhead", "default", "max-autotune"]
        accumulating = gpu_facts(result=replace(result(), batch_size=128.0))
        assert proposed("compile", accumulating) == ["default"]

    def test_blocks_that_repeat_are_compiled_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpurun.knobs.compile.missing_tool", lambda *_: None)
        blocks = (replace(ROOT, module_types={"Block": 12, "Linear": 60}, blocks={"Block": 12}),)
        assert proposed("compile", facts(roots=blocks)) == ["regional", "default"]
        whole = ["reduce-overhead", "default", "max-autotune"]
        assert proposed("compile", gpu_facts(roots=blocks)) == [whole[0], "regional", *whole[1:]]
        compiled = gpu_facts(roots=blocks, current={"compile": whole[0]})
        assert proposed("compile", compiled) == whole, "the whole model starts in time"

    def test_graphs_that_keep_the_gpu_busy_are_held_against_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A GPT of 124 M: inputs and outputs that graphs copy took 1.5 ms of 21."""
        monkeypatch.setattr("gpurun.knobs.compile.missing_tool", lambda device, capability: None)
        graphs = {"compile": "reduce-overhead"}
        for percent, first in ((87.0, "default"), (41.0, "reduce-overhead"), (None, None)):
            ground = gpu_facts(result=replace(result(0, 20), gpu_utilization_percent=percent))
            assert proposed("compile", ground)[0] == "reduce-overhead", "nothing is compiled yet"
            found = proposed("compile", replace(ground, current=graphs))
            assert found[0] == (first or "reduce-overhead")
            few = percent is not None and percent < 80.0
            assert len(found) == (1 if few else 3), "no other mode launches less"
            kept = proposed("compile", replace(ground, current={"compile": "default"}))
            assert kept[0] == (first or "reduce-overhead"), "no way back from what was better"

    def test_fused_where_the_class_has_it_and_the_script_does_not_choose(self) -> None:
        assert proposed("fused_optimizer", facts()) == ["fused"]
        chosen = replace(OPTIMIZER, hyperparameters={"fused": False, "foreach": None})
        assert "itself" in skipped("fused_optimizer", facts(optimizers=(chosen,)))
        assert "no optimizer" in skipped("fused_optimizer", facts(optimizers=()))

    def test_foreach_is_tried_only_where_torch_does_not_take_it_by_itself(self) -> None:
        rprop = replace(OPTIMIZER, class_name="Rprop", hyperparameters={"foreach": None})
        assert proposed("fused_optimizer", facts(optimizers=(rprop,))) == ["foreach"]
        assert "no faster path" in skipped("fused_optimizer", gpu_facts(optimizers=(rprop,)))

    def test_without_a_module_there_is_nothing_to_cast_or_compile(self) -> None:
        assert "no module" in skipped("autocast", gpu_facts(roots=()))
        assert "no module" in skipped("compile", facts(roots=()))


class TestMemoryKnobs:
    @pytest.mark.parametrize("knob", ["checkpointing", "activation_offload"])
    def test_time_is_paid_for_memory_only_where_memory_is_what_is_needed(self, knob: str) -> None:
        assert "saves memory, costs time" in skipped(knob, gpu_facts())
        assert proposed(knob, gpu_facts(objective="memory"))
        assert proposed(knob, gpu_facts(out_of_memory=True))

    @pytest.mark.parametrize("knob", ["checkpointing", "activation_offload"])
    def test_they_act_on_a_forward_that_python_runs(self, knob: str) -> None:
        needed = gpu_facts(objective="memory")
        assert "no module" in skipped(knob, replace(needed, roots=()))
        assert "compiled" in skipped(knob, replace(needed, current={"compile": "default"}))
        assert "DataParallel" in skipped(knob, replace(needed, traits={"data_parallel": "a.py:3"}))

    def test_a_script_that_does_not_fit_gets_the_most_saving_first(self) -> None:
        assert proposed("checkpointing", facts(objective="memory")) == ["half", "blocks"]
        assert proposed("checkpointing", facts(out_of_memory=True)) == ["blocks"]
        fits = facts(out_of_memory=True, current={"checkpointing": "blocks"})
        assert proposed("checkpointing", fits) == ["half", "blocks"], "which may be enough"

    def test_activations_leave_a_gpu_only(self) -> None:
        ground = facts(objective="memory")
        assert skipped("activation_offload", ground) == "the model is not on a GPU"

    def test_accumulation_gains_nothing_that_tuning_could_measure(self) -> None:
        assert "no faster by itself" in skipped("accumulation", facts(objective="memory"))


def test_a_loader_of_evaluation_is_no_ground() -> None:
    evaluation = replace(LOADER, key="train.py:9#0", workers=4)
    ground = facts(loaders=(LOADER, evaluation))
    assert "no workers" in skipped("loader_persistent", ground)


def test_what_rewrites_a_graph_is_applied_before_what_compiles_it() -> None:
    """Else attention finds a compiled model, knows none of its buffers, and keeps a mask."""
    assert find("attention").order < find("compile").order
