"""A Chrome trace is read event by event, in Kineto's shapes of today and of earlier releases."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.timeline import from_kineto
from gpurun.timeline.figures_of import figures_of
from gpurun.timeline.kernel_groups import operator_group
from gpurun.timeline.model import CopyKind, Group, Phase, Timeline
from gpurun.timeline.runtime_calls import host_waits

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
DEVICE = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150, "numSms": 132}


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 7, "args": args}


EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "ts": 0, "args": {"name": "python"}},
    event("user_annotation", "ProfilerStep#3", 100, 50),
    event("user_annotation", "enumerate(DataLoader)#_SingleProcessIter.__next__", 100.5, 10),
    event("user_annotation", "Optimizer.step#SGD.step", 130, 9),
    event("cpu_op", "aten::linear", 112, 10),
    event("cpu_op", "aten::addmm", 113, 7),
    event("cuda_runtime", "cudaLaunchKernel", 114, 2, correlation=5),
    event(
        "kernel", GEMM, 118, 4.25, device=0, stream=7, correlation=5,
        grid=[4, 2, 1], block=[128, 1, 1], **{"registers per thread": 168, "shared memory": 99},
    ),
    event(
        "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 111, 1, device=0, stream=7,
        correlation=4, bytes=1024,
    ),
    event("gpu_memset", "Memset (Device)", 117, 0.5, device=0, stream=7, correlation=6, bytes=8),
    event("cuda_runtime", "cudaStreamSynchronize", 124, 3, correlation=8),
    event(
        "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 125, 20, device=0, stream=20,
        correlation=9, dtype="Float",
        **{"Collective name": "allreduce", "In msg nelems": 100, "Group size": 4},
    ),
]  # fmt: skip


def written(path: Path, events: list[dict[str, Any]] | None = None, **header: Any) -> Path:
    document = {"schemaVersion": 1, "deviceProperties": [DEVICE], **header}
    document |= {"traceEvents": EVENTS if events is None else events, "traceName": "x"}
    path.write_text(json.dumps(document, indent=1))
    return path


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    return from_kineto.read(written(tmp_path / "trace.json", distributedInfo={"rank": 2}))


def test_kernels_are_read_with_their_shapes(timeline: Timeline) -> None:
    assert timeline.kernels is not None
    gemm = timeline.kernels[0]
    assert (gemm.begin_ns, gemm.end_ns, gemm.stream) == (118_000, 122_250, 7)
    assert (gemm.group, gemm.kind.tensor_core) == (Group.MATMUL, True)
    assert (gemm.kind.grid, gemm.kind.block) == ((4, 2, 1), (128, 1, 1))
    assert timeline.rank == 2
    assert timeline.devices is not None
    assert timeline.devices[0].multiprocessors == 132


def test_copies_say_where_the_host_kept_them(timeline: Timeline) -> None:
    assert timeline.copies is not None
    copies = [(copy.kind, copy.bytes, copy.pageable) for copy in timeline.copies]
    assert copies == [(CopyKind.H2D, 1024, True), (CopyKind.SET, 8, None)]


def test_waits_of_the_host_are_calls_that_synchronise(timeline: Timeline) -> None:
    waits = host_waits(timeline)
    assert waits is not None
    assert [(wait.name, wait.end_ns - wait.begin_ns) for wait in waits] == [
        ("cudaStreamSynchronize", 3000)
    ]


def test_collectives_have_their_size(timeline: Timeline) -> None:
    (reduce,) = (k for k in timeline.kernels or () if k.group is Group.COMMUNICATION)
    assert reduce.kind.message_bytes == 400


EXCHANGES = (
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
    "_Z48ncclAllGatherRingLLKernel_copy_i8P11ncclDevComm",
    "void ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",  # RCCL
    "mscclKernel_Sum_float_LL(ncclDevComm*)",
    "void mscclpp::allreduceKernel<float>(float*)",
    "nvshmemi_barrier_all_kernel",
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)2>(int)",  # NVSHMEM
    "rdxn_float_sum_on_stream_kernel(float*, float const*, unsigned long)",
    "void deep_ep::intranode::dispatch<8, 768>(int4*)",
    "void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*)",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    "multimem_one_shot_reduce_kernel<c10::BFloat16, 8>",
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(AllReduceParams)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>()",
    "void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int)",
    "kuserbuffers_pushsend(int*)",
)


@pytest.mark.parametrize("name", EXCHANGES)
def test_an_exchange_is_known_by_its_kernel_without_metadata_and_is_never_idle_time(
    tmp_path: Path, name: str
) -> None:
    events = [
        event("user_annotation", "ProfilerStep#3", 100, 100),
        event("kernel", GEMM, 100, 50, device=0, stream=7, correlation=5),
        event("kernel", name, 140, 40, device=0, stream=20, correlation=9),
    ]
    figures = figures_of(from_kineto.read(written(tmp_path / "trace.json", events)))
    assert figures.idle is not None
    assert figures.idle.total == pytest.approx(0.2)
    assert figures.kernel_share == pytest.approx(0.5)
    assert figures.communication is not None
    assert figures.communication.share == pytest.approx(0.4)
    assert figures.communication.exposed_share == pytest.approx(0.3)


def test_an_exchange_is_known_by_its_metadata_whatever_its_kernel_is_called(tmp_path: Path) -> None:
    events = [
        event("kernel", GEMM, 100, 50, device=0, correlation=5),
        event("kernel", "fused_k", 150, 50, device=0, **{"Collective name": "allreduce"}),
    ]
    figures = figures_of(from_kineto.read(written(tmp_path / "trace.json", events)))
    assert figures.kernel_share == pytest.approx(0.5)
    assert figures.communication is not None
    assert figures.communication.share == pytest.approx(0.5)
    assert figures.idle is not None
    assert figures.idle.total == 0


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused__to_copy_all_gather_into_tensor_wait_tensor_3",
        "triton_red_fused_native_layer_norm_reduce_scatter_tensor_0",
        "sm100_gemm_asyncCluster_128x128",
        "void warpAllReduce<float>(float*)",
        "layernorm_blockAllReduce",
        "void at::native::sum_all_reduce<float>(float*)",
        "embedding_all_gather_index",
    ],
)
def test_a_computing_kernel_with_the_name_of_an_exchange_inside_is_none(
    tmp_path: Path, name: str
) -> None:
    events = [event("kernel", name, 150, 50, device=0)]
    timeline = from_kineto.read(written(tmp_path / "trace.json", events))
    assert timeline.kernels is not None
    assert timeline.kernels[0].group is not Group.COMMUNICATION


@pytest.mark.parametrize(
    ("name", "exchanges"),
    [
        ("nccl:all_reduce", True),
        ("c10d::allreduce_", True),
        ("_c10d_functional::all_gather_into_tensor", True),
        ("symm_mem::one_shot_all_reduce", True),
        ("fsdp::all_gather_copy_in", False),
        ("mylib::block_allreduce", False),
    ],
)
def test_operators_of_process_groups_exchange_whatever_others_are_called(
    name: str, exchanges: bool
) -> None:
    assert (operator_group(name) is Group.COMMUNICATION) is exchanges


def test_operators_are_summed_with_their_own_time(timeline: Timeline) -> None:
    assert timeline.operators is not None
    sums = {o.name: (o.calls, o.self_ns) for o in timeline.operators}
    assert sums == {"aten::addmm": (1, 7000), "aten::linear": (1, 3000)}


def test_operators_are_told_apart_by_the_shapes_of_their_tensors(tmp_path: Path) -> None:
    def call(at: int, dims: object) -> dict[str, Any]:
        return event("cpu_op", "aten::mm", at, 5, **{"Input Dims": dims})

    dims: list[object] = [[[8, 3], [3, 5], []], [[8, 3], [3, 5], []], [[1, 2]], "odd", [[]]]
    events = [call(100 + 10 * at, each) for at, each in enumerate(dims)]
    found = from_kineto.read(written(tmp_path / "trace.json", events)).operators
    assert found is not None
    assert {(o.shapes, o.calls) for o in found} == {("[8, 3] [3, 5]", 2), ("[1, 2]", 1), (None, 2)}


def test_torchs_own_ranges_are_phases(timeline: Timeline) -> None:
    assert timeline.ranges is not None
    assert [r.name for r in timeline.ranges] == [
        Phase.STEP.value, Phase.DATA.value, Phase.OPTIMIZER.value,
    ]  # fmt: skip
    assert timeline.steps is not None
    assert (timeline.window_begin_ns, timeline.window_end_ns) == (100_000, 150_000)


def test_a_mark_brings_the_trace_to_the_runtimes_clock(tmp_path: Path) -> None:
    marks = [
        event("user_annotation", "gpurun clock 9000000", 101, 0),
        event("user_annotation", "gpurun clock 9100000", 204, 0),  # 3 us late
    ]
    timeline = from_kineto.read(written(tmp_path / "trace.json", EVENTS + marks))
    assert timeline.window_begin_ns == 9_000_000 - 1000
    assert timeline.kernels is not None
    assert timeline.kernels[0].begin_ns == 9_000_000 + 17_000


def test_a_trace_of_the_cpu_measured_no_device(tmp_path: Path) -> None:
    events = [each for each in EVENTS if each.get("cat") in ("cpu_op", "user_annotation")]
    timeline = from_kineto.read(written(tmp_path / "cpu.json", events, deviceProperties=[]))
    assert timeline.operators
    for unseen in (timeline.kernels, timeline.copies, timeline.runtime_calls):
        assert unseen is None


def test_a_zipped_trace_and_a_bare_list_are_read(tmp_path: Path) -> None:
    zipped = tmp_path / "trace.json.gz"
    zipped.write_bytes(gzip.compress(written(tmp_path / "t.json").read_bytes()))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(EVENTS))
    for path in (zipped, bare):
        assert len(from_kineto.read(path).kernels or ()) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not a trace of torch.profiler"),
        ("hello", "is not a trace of torch.profiler"),
        ('{"spec": 1}', "is not a trace of torch.profiler"),
        ('{"traceEvents": []}', "holds no event of a training"),
        (
            '{"traceEvents": [{"ph": "X", "na',
            "ends in the middle of an event, at line 1, column 33",
        ),
        ('{"traceEvents": [{"ph": "M"},', "ends in the middle of an event"),
        ('{"rank": "a"b",\n"traceEvents": [{"ph": "M"}]}', "line 1, column 13 is no JSON"),
        ('{"traceEvents": [{"ph": "M"}],\n"name": "a"b"}', "line 2, column 12 is no JSON"),
        ('{"traceEvents": [{"ph": "X", "name": a long word}]}', "line 1, column 38 is no JSON"),
        ('{"traceEvents": [{"ph": "M"}],\n"name": "a"}\n"name": "a"}', "line 3, column 1 follows"),
        ('[{"ph": "M"}]\n{"ph": "M"}]', "line 2, column 1 follows its end"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(GpurunError) as error:
        from_kineto.read(path)
    assert said in error.value.what
    assert "\n" not in error.value.what


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "-nan", "-nan(ind)", "NaN", "Infinity"])
def test_numbers_that_are_not_finite_are_read_however_they_are_written(
    tmp_path: Path, number: str
) -> None:
    path = written(tmp_path / "trace.json", EVENTS * 2)
    text = path.read_text().replace('"bytes": 1024', f'"bytes": 1024, "GB/s": {number}')
    path.write_text(text.replace('"numSms": 132', f'"numSms": 132, "clock": {number}'))
    timeline = from_kineto.read(path)
    assert [copy.bytes for copy in timeline.copies or ()] == [1024, 1024, 8, 8]
    assert timeline.notes == ()


BROKEN_NAMES = (
    '{"device": [{"ph": 1}, {"name": "cpu"}]}(12): run',
    'print("inf")',
    "C:\\users",
    '"',
)


@pytest.mark.parametrize("name", BROKEN_NAMES)
@pytest.mark.parametrize("place", [1, len(EVENTS)])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_event_that_is_no_json_is_left_out_and_its_place_is_said(
    tmp_path: Path, name: str, place: int, indent: int | None
) -> None:
    events = [*EVENTS[:place], event("python_function", "BROKEN", 110, 1), *EVENTS[place:]]
    text = json.dumps({"traceEvents": events, "traceName": "x"}, indent=indent)
    (tmp_path / "trace.json").write_text(text.replace("BROKEN", name))
    timeline = from_kineto.read(tmp_path / "trace.json")
    assert len(timeline.kernels or ()) == 2
    assert len(timeline.ranges or ()) == 3
    line = 1 if indent is None else text[: text.index("BROKEN")].count("\n") + 1
    assert f"trace.json: line {line}, column " in timeline.notes[0]
    assert "is no JSON" in timeline.notes[0]


def test_events_with_unusable_values_are_left_out_and_counted(tmp_path: Path) -> None:
    spoilt = [
        event("kernel", GEMM, float("nan"), 4, device=0, stream=7, correlation=5),
        event("kernel", GEMM, 118, float("inf"), device=0, stream=7, correlation=5),
        event("cuda_runtime", "cudaLaunchKernel", 114, 2, correlation=10**30),
    ]
    timeline = from_kineto.read(written(tmp_path / "trace.json", [*spoilt, *EVENTS]))
    assert [k.correlation for k in timeline.kernels or ()] == [5, 9]
    assert [c.correlation for c in timeline.runtime_calls or ()] == [5, 8]
    assert (timeline.window_begin_ns, timeline.window_end_ns) == (100_000, 150_000)
    assert "events left out for their values: 3" in timeline.notes[0]
    with pytest.raises(GpurunError, match="is damaged"):
        from_kineto.read(written(tmp_path / "trace.json", spoilt[:2]))


def test_every_cut_of_a_trace_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "trace.json").read_text()
    cut = tmp_path / "cut.json"
    end = whole.rindex("]")
    for length in range(whole.index('"traceEvents"') + 20, end, 97):
        cut.write_text(whole[:length])
        with pytest.raises(GpurunError):
            from_kineto.read(cut)


@pytest.mark.slow  # quick twin: kernels are read, above
def test_a_large_trace_is_streamed(tmp_path: Path) -> None:
    """60 MB of events raise the peak of a fresh process by far less than that."""
    path = tmp_path / "large.json"
    repeats = 20_000
    with open(path, "w") as file:
        file.write('{"deviceProperties": [], "traceEvents": [{"ph": "M"}')
        for number in range(repeats):
            for each in EVENTS[1:]:
                moved = {**each, "ts": each["ts"] + 100 * number}
                file.write(",\n" + json.dumps(moved, indent=1))
        file.write("]}")
    code = (
        "import resource, sys; from pathlib import Path; from gpurun.timeline import from_kineto\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "kernels = len(from_kineto.read(Path(sys.argv[1])).kernels)\n"
        "print(kernels, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    kernels, raised_kib = map(int, done.stdout.split())
    assert kernels == 2 * repeats
    assert raised_kib * 1024 < path.stat().st_size / 2
