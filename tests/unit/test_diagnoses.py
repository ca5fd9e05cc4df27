"""Each fault is the first finding; a healthy training has none above 0.4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpurun.diagnoses.diagnosis_report import all_diagnoses, diagnose
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import DEFAULTS, Thresholds, gain_severity
from gpurun.knobs import all_knobs
from gpurun.records.events import ValueRead
from gpurun.records.finding import WARNING, FindingType, Location
from gpurun.records.messages.profile_events import AllocatorState, FunctionSamples
from gpurun.records.profile_figures import (
    CommunicationFigures,
    CopyShare,
    LaunchFigures,
    PrecisionFigures,
    ProfileFigures,
    SyncFigures,
)
from gpurun.records.result import GpuPair, HostUse, KnobOutcome, StepSplit, Topology
from gpurun.timeline.model import Group, Phase, Timeline
from tests.unit.diagnosis_cases import (
    FIGURES,
    IDLE,
    SPLIT,
    first,
    found,
    function,
    gpu,
    healthy_cpu,
    healthy_gpu,
    kernel,
    loader,
    measured_kernels,
    profiled,
    result,
    sample,
)


def idle(**changes: float) -> ProfileFigures:
    return replace(FIGURES, idle=replace(IDLE, **changes))


@pytest.mark.parametrize("evidence", [healthy_gpu(), healthy_cpu(), Evidence()])
def test_a_healthy_training_has_no_warning(evidence: Evidence) -> None:
    assert [f for f in diagnose(evidence) if f.severity > WARNING] == []


@pytest.mark.parametrize(
    ("figures", "kind", "gain"),
    [
        (idle(total=0.5, data=0.4), FindingType.DATA_LOADING, 1 / 0.6),
        (idle(total=0.3, sync=0.25), FindingType.CPU_GPU_SYNC, 1 / 0.75),
        (
            replace(FIGURES, copies=(CopyShare("h2d", True, 0.3, 0.25, 1, 1e8),)),
            FindingType.H2D_COPY,
            1 / 0.75,
        ),
        (
            replace(
                idle(total=0.6, launch=0.55),
                launches=LaunchFigures(1500, 3.0, 0.5, 0.9, 0.0),
            ),
            FindingType.LAUNCH_BOUND,
            1 / (1 - 0.55),
        ),
        (
            replace(FIGURES, precision=PrecisionFigures(0.0, 0.7)),
            FindingType.PRECISION,
            1 / (1 - 0.7 * 14 / 15),
        ),
        (
            replace(FIGURES, fusable_share=0.8),
            FindingType.MEMORY_BANDWIDTH,
            1 / (1 - 0.8),
        ),
        (
            replace(FIGURES, launches=replace(FIGURES.launches, device_allocations_per_step=20.0)),
            FindingType.MEMORY_ALLOCATION,
            None,
        ),
        (
            replace(FIGURES, communication=CommunicationFigures(0.4, 0.3, 5, 1e8)),
            FindingType.MULTI_GPU_COMM,
            1 / 0.7,
        ),
    ],
)
def test_a_fault_in_the_timeline_is_the_first_finding(
    figures: ProfileFigures, kind: FindingType, gain: float | None
) -> None:
    finding = first(healthy_gpu(figures))
    assert finding.type is kind
    assert finding.severity > WARNING
    assert finding.gain_upper_bound == (gain if gain is None else pytest.approx(gain, rel=1e-3))
    assert all(f.type is kind or f.severity <= WARNING for f in diagnose(healthy_gpu(figures)))


def test_severities_pass_through_their_thresholds() -> None:
    for name, threshold in DEFAULTS.items():
        rate = Thresholds().severity
        assert rate(name, threshold.warning) == pytest.approx(0.4), name
        assert rate(name, threshold.critical) == pytest.approx(0.7), name
        worse = threshold.critical * (2 if threshold.critical > threshold.warning else 0.5)
        better = threshold.warning * (0.5 if threshold.critical > threshold.warning else 1.5)
        assert 0 <= rate(name, better) < 0.4 < 0.7 < rate(name, worse) < 1, name
        assert rate(name, None) == 0


@pytest.mark.parametrize(
    ("gain", "severity"),
    [(0.9, 0), (1, 0), (1.05, 0.2), (1.1, 0.4), (1.4, 0.7), (1.7, 0.85), (2, 1), (30, 1)],
)
def test_severity_is_linear_in_the_gain_between_its_marks(gain: float, severity: float) -> None:
    assert gain_severity(gain) == pytest.approx(severity)


def test_a_wait_for_data_beside_a_busy_device_is_no_finding() -> None:
    waits = result(replace(SPLIT, data_wait_ms=6.0), devices=(gpu(),))
    assert found(healthy_gpu(result=waits), FindingType.DATA_LOADING) is None


def cpu_bound_data(
    cores: float | None, workers: int, functions: Sequence[FunctionSamples] = ()
) -> Evidence:
    split = StepSplit(8.0, None, 1.0, 0.6, 0.2, 0.2)
    used = cores and cores * 100
    host = HostUse(used, 8.0, 1, 1 + workers, steady_cpu_percent=used)
    return healthy_cpu(
        result=result(split, host=host),
        loaders=(loader(workers),),
        timeline=profiled(functions) if functions else None,
    )


@pytest.mark.parametrize(
    ("cores", "workers", "cause"),
    [
        (0.3, 0, "idle"),
        (1.0, 0, "computing"),
        (0.5, 0, "workers"),
        (7.8, 8, "computing"),
        (1.9, 2, "workers"),
        (0.2, 4, "idle"),
        (1.3, 12, "idle"),  # they sleep, on fewer cores than workers
        (3.0, 4, "workers"),
        (2.0, 4, "not_measured"),  # the model's own threads may be all of it
        (None, 12, "not_measured"),  # as in a side of a live pair
        (None, 0, "workers"),
    ],
)
def test_cpu_use_and_workers_tell_why_data_are_late(
    cores: float | None, workers: int, cause: str
) -> None:
    finding = first(cpu_bound_data(cores, workers))
    assert finding.type is FindingType.DATA_LOADING
    assert finding.location == Location("train.py", 31)
    assert {e.name: e.value for e in finding.evidence}["cause"] == cause
    assert finding.gain_upper_bound == pytest.approx(5.0)
    assert Source.HOST.value in finding.missing_sources


def test_busy_workers_beside_a_short_wait_are_not_said_to_be_idle() -> None:
    """They fill their queue while the model trains, and rest while it is full."""
    split = StepSplit(1.0, None, 4.0, 4.0, 0.5, 0.5)
    host = HostUse(120.0, 8.0, 1, 5, steady_cpu_percent=120.0)
    finding = found(
        healthy_cpu(result=result(split, host=host), loaders=(loader(4),)), FindingType.DATA_LOADING
    )
    assert finding is not None
    assert "the cause was not measured" in finding.description


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"cores_available": 2.0, "steady_cpu_percent": 180.0, "processes": 5}, "computing"),
        ({"cores_available": 1.0, "steady_cpu_percent": 90.0, "processes": 5}, "cores"),
        ({"processes": 1}, "not_measured"),  # the sampler has not seen the workers yet
        ({"processes": 5}, "idle"),
        ({"cpu_percent": 700.0, "steady_cpu_percent": None, "processes": 5}, "not_measured"),
        ({"cpu_percent": 700.0, "steady_cpu_percent": 700.0, "processes": 5}, "computing"),
        ({"steady_cpu_percent": 180.0, "processes": 10}, "idle"),  # of two ranks
    ],
)
def test_a_cause_needs_the_use_of_all_processes_in_the_measured_steps(
    changes: dict[str, Any], cause: str
) -> None:
    evidence = cpu_bound_data(0.5, 4)
    assert evidence.result is not None
    assert evidence.result.host is not None
    ranks = 2 if changes["processes"] == 10 else 1
    host = replace(evidence.result.host, **changes)
    finding = first(replace(evidence, result=replace(evidence.result, host=host, ranks=ranks)))
    assert {e.name: e.value for e in finding.evidence}["cause"] == cause


@pytest.mark.parametrize("cores", [0.2, 1.0, None])
@pytest.mark.parametrize("workers", [0, 2, 16])
def test_storage_is_never_named_as_a_fact(cores: float | None, workers: int) -> None:
    said = first(cpu_bound_data(cores, workers)).description
    assert "storage" not in said or "for what: not measured" in said


def test_a_pause_before_the_first_kernel_is_not_said_to_be_a_wait_for_data() -> None:
    pause = replace(IDLE, total=0.3, host=0.29, data=None)
    recording = Evidence(figures=replace(FIGURES, idle=pause, step_ms=30.0))
    assert found(recording, FindingType.DATA_LOADING) is None
    waits = found(recording, FindingType.HOST_BOUND)
    assert waits is not None
    assert "the host does something else (which may be its loader)" in waits.description


def test_threads_that_a_setting_of_gpurun_chose_are_no_finding() -> None:
    switches = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    assert found(healthy_cpu(switches=switches), FindingType.ENVIRONMENT) is not None
    chosen = result(knobs=(KnobOutcome("cpu_threads", "applied", "1 thread"),))
    assert found(healthy_cpu(switches=switches, result=chosen), FindingType.ENVIRONMENT) is None


def test_pauses_of_a_live_pair_do_not_make_busy_workers_look_idle() -> None:
    split = StepSplit(8.0, None, 1.0, 0.6, 0.2, 0.2)
    host = HostUse(90.0, 2.0, 1, 4, steady_cpu_percent=190.0)
    finding = first(healthy_cpu(result=result(split, host=host), loaders=(loader(3),)))
    assert {e.name: e.value for e in finding.evidence}["cause"] == "computing"


def test_neighbours_that_take_the_cores_leave_the_cause_open() -> None:
    split = StepSplit(8.0, None, 1.0, 0.6, 0.2, 0.2)
    host = HostUse(10.0, 2.0, 1, 1, others_cpu_percent=185.0)
    finding = first(healthy_cpu(result=result(split, host=host)))
    assert finding.type is FindingType.DATA_LOADING
    assert {e.name: e.value for e in finding.evidence}["cause"] == "workers"


@pytest.mark.parametrize(("blocked", "cause"), [(0.0, "computing"), (0.7, "idle")])
def test_neighbours_hide_no_cause_from_a_host_profile(blocked: float, cause: str) -> None:
    resize = replace(function("resize", 0.75, phase=Phase.DATA), blocked_seconds=blocked)
    evidence = cpu_bound_data(1.0, 0, [resize])
    assert evidence.result is not None
    host = HostUse(80.0, 2.0, 1, 1, others_cpu_percent=120.0)
    finding = first(replace(evidence, result=replace(evidence.result, host=host)))
    assert {e.name: e.value for e in finding.evidence}["cause"] == cause


def test_a_loader_without_workers_is_not_said_to_have_too_few() -> None:
    assert "no worker process prepares batches" in first(cpu_bound_data(0.5, 0)).description
    assert "too few worker processes" in first(cpu_bound_data(1.9, 2)).description


def test_a_host_profile_names_the_line_in_the_data_set() -> None:
    functions = [
        function("__getitem__", 0.01, 0.8, Phase.DATA, line=20),
        function("resize", 0.02, 0.75, Phase.DATA, line=44),
        function("<built-in method time.sleep>", 0.7, 0.7, Phase.DATA, users_own=False, file="~"),
    ]
    finding = first(cpu_bound_data(1.0, 0, functions))
    assert finding.location == Location("/home/me/train.py", 44, "resize")
    assert {e.name: e.value for e in finding.evidence}["cause"] == "idle"


def test_workers_are_no_cure_for_a_slow_sampler() -> None:
    loader = "/lib/torch/utils/data/dataloader.py"
    asks = "_BaseDataLoaderIter._next_index"
    functions = [
        function("Weighted.__iter__", 0.6, 0.7, Phase.DATA, line=19),
        function(asks, 0.0, 0.7, Phase.DATA, users_own=False, file=loader),
        function("Data.__getitem__", 0.2, 0.2, Phase.DATA, line=8),
    ]
    finding = first(cpu_bound_data(1.0, 0, functions))
    assert finding.location == Location("/home/me/train.py", 19, "Weighted.__iter__")
    assert {e.name: e.value for e in finding.evidence}["cause"] == "sampler"
    assert finding.knob is None
    functions[0] = function("Weighted.__iter__", 0.1, 0.1, Phase.DATA, line=19)
    functions[1] = function(asks, 0.0, 0.1, Phase.DATA, users_own=False, file=loader)
    assert first(cpu_bound_data(1.0, 0, functions)).knob == "loader_workers"


def test_what_a_step_does_with_torch_outside_the_model_counts_but_the_loss_does_not() -> None:
    inside = function(
        "Linear.forward", 0.5, 0.5, Phase.FORWARD, users_own=False, file="/torch/nn/l"
    )
    saves = function("_save", 0.4, 0.4, users_own=False, file="/lib/torch/serialization.py")
    loss = function("cross_entropy", 0.4, 0.4, users_own=False, file="/lib/torch/nn/functional.py")
    main = function("main", 0.1, 0.5, line=25)
    finding = found(healthy_cpu(timeline=profiled([inside, saves, main])), FindingType.HOST_BOUND)
    assert finding is not None
    assert (finding.location, finding.gain_upper_bound) == (
        Location("/home/me/train.py", 25, "main"),
        pytest.approx(2.0),
    )
    assert "writes or logs" in finding.description
    quiet = found(healthy_cpu(timeline=profiled([inside, loss, main])), FindingType.HOST_BOUND)
    assert quiet is not None
    assert quiet.gain_upper_bound == pytest.approx(1 / 0.9, abs=0.001)


@pytest.mark.parametrize(("self_seconds", "is_own"), [(0.5, True), (0.01, False)])
def test_an_optimizer_written_in_python_is_named_and_one_of_torch_is_not(
    self_seconds: float, is_own: bool
) -> None:
    """Of one of torch only the caller is the user's."""
    step = function("Own.step", self_seconds, 0.8, Phase.OPTIMIZER, line=29)
    inside = "/lib/torch/functional.py"
    norm = function("norm", 0.8 - self_seconds, 0.3, Phase.OPTIMIZER, users_own=False, file=inside)
    evidence = healthy_cpu(StepSplit(0.2, None, 0.6, 0.6, 8.0, 0.6))
    timeline = profiled([step, norm, function("main", 0.05, 1.0, line=41)])
    finding = found(replace(evidence, timeline=timeline), FindingType.HOST_BOUND)
    named = finding is not None and finding.location is not None and finding.location.line == 29
    assert named is is_own
    if is_own and finding is not None:
        assert "takes 80 % of the step in Own.step" in finding.description
        assert finding.gain_upper_bound == pytest.approx(5.0)


def test_the_bound_of_a_wait_is_that_of_steps_that_are_not_profiled() -> None:
    """A repair gained ×4.97 where a profiled step told ×4.70: the profile slows the rest of it."""
    evidence = healthy_cpu(StepSplit(8.0, None, 1.0, 0.6, 0.2, 0.2))
    finding = first(replace(evidence, profiling_share=0.1))
    assert finding.gain_upper_bound == pytest.approx(0.9 / 0.1, rel=1e-3)
    waits = first(replace(evidence, profiling_share=0.3))
    assert waits.gain_upper_bound == pytest.approx(9.0, rel=1e-3), "half of the rest is its own"


def test_a_wait_names_its_line_and_the_knob_only_where_one_helps() -> None:
    waits = replace(idle(total=0.3, sync=0.25), syncs=SyncFigures(0.4, 2))
    reads = (ValueRead("train.py:57", ".item()", "cuda", 9, 9),)
    finding = first(healthy_gpu(waits, reads=reads, read_steps=9))
    assert finding.location == Location("train.py", 57)
    assert finding.knob is None
    explicit = first(healthy_gpu(waits, traits={"synchronize": "train.py:60"}))
    assert explicit.location == Location("train.py", 60)
    assert explicit.knob == "needless_sync"


def test_reads_without_a_timeline_are_a_warning_at_most_and_say_what_is_missing() -> None:
    reads = (ValueRead("train.py:57", ".item()", "cuda", 9, 9),)
    idle_gpu = result(devices=(gpu(graphics_activity_percent=50.0),))
    evidence = healthy_gpu(ProfileFigures(), result=idle_gpu, reads=reads, read_steps=9)
    finding = found(evidence, FindingType.CPU_GPU_SYNC)
    assert finding is not None
    assert finding.severity == WARNING
    assert finding.gain_upper_bound is None
    assert finding.missing_sources == (Source.TIMELINE.value,)
    on_cpu = healthy_cpu(reads=reads, read_steps=9)
    assert found(on_cpu, FindingType.CPU_GPU_SYNC) is None


def test_a_host_profile_names_what_python_does_between_operators() -> None:
    functions = [
        function("main", 0.05, 1.0),
        function("bookkeeping", 0.35, 0.4, line=70),
        function("forward", 0.4, 0.4, Phase.FORWARD),
        function("cross_entropy", 0.1, file="/lib/torch/nn/functional.py", users_own=False),
    ]
    finding = first(healthy_cpu(timeline=profiled(functions)))
    assert finding.type is FindingType.HOST_BOUND
    assert finding.location is not None
    assert finding.location.line == 70
    assert finding.gain_upper_bound == pytest.approx(1 / 0.6, rel=1e-3)


def blocked_in(*functions: FunctionSamples, line: str = "") -> Evidence:
    """Python outside the model; the kernel counts the time of foreign functions as blocked."""
    counted = [
        replace(f, blocked_seconds=0.0 if f.users_own else f.self_seconds) for f in functions
    ]
    lines = {("/home/me/train.py", 40): line}
    return healthy_cpu(timeline=profiled(counted), source_lines=lines)


def foreign(
    name: str, own: float, total: float, file: str = "/lib/threading.py"
) -> FunctionSamples:
    return function(name, own, total, users_own=False, file=file)


def test_a_wait_for_a_queue_of_the_scripts_own_is_a_wait_for_data() -> None:
    evidence = blocked_in(
        function("main", 0.02, 0.9, line=40),
        foreign("Queue.get", 0.0, 0.88, "/lib/queue.py"),
        foreign("Condition.wait", 0.88, 0.88),
    )
    finding = first(evidence)
    assert finding.type is FindingType.DATA_LOADING
    assert finding.description == (
        "the main thread waits in Queue.get at train.py:40 in main for 90 % of the step: "
        "whatever fills that queue is the bottleneck"
    )
    assert finding.location == Location("/home/me/train.py", 40, "main")
    assert finding.gain_upper_bound == pytest.approx(10)
    assert found(evidence, FindingType.HOST_BOUND) is None


@pytest.mark.parametrize(
    ("functions", "line", "told"),
    [
        (
            [foreign("Event.wait", 0.0, 0.6), foreign("Condition.wait", 0.6, 0.6)],
            "ready.wait()",
            "in Event.wait at train.py:40 in main for 60 % of the step: whatever it waits for",
        ),
        (
            [foreign("Popen._wait", 0.6, 0.6, "/lib/subprocess.py")],
            "process.wait()",
            "in process.wait at train.py:40 in main for 60 % of the step: whatever it waits for",
        ),
        (
            [foreign("<method 'recv' of '_socket.socket' objects>", 0.6, 0.6)],
            "data = connection.recv(1024)",
            "at train.py:40 in main for 60 % of the step: whatever it waits for",
        ),
    ],
)
def test_a_thread_that_waits_is_not_said_to_compute(
    functions: list[FunctionSamples], line: str, told: str
) -> None:
    finding = first(blocked_in(function("main", 0.0, 0.6, line=40), *functions, line=line))
    assert finding.type is FindingType.HOST_BOUND
    assert told in finding.description


@pytest.mark.parametrize(("blocked", "sleeps"), [(0.5, True), (0.1, False)])
def test_whether_a_line_waits_or_computes_is_what_the_kernel_counts(
    blocked: float, sleeps: bool
) -> None:
    pause = replace(function("pause", 0.5, line=40), blocked_seconds=blocked)
    evidence = healthy_cpu(
        timeline=profiled([pause]), source_lines={(pause.file, 40): "time.sleep(0.1)"}
    )
    description = first(evidence).description
    asleep = (
        "waits in time.sleep at train.py:40 in pause for 50 % of the step: the script itself sleeps"
    )
    assert (asleep in description) is sleeps
    assert ("Python outside the model takes" in description) is not sleeps


def test_a_wait_that_python_interrupts_says_how_much_of_it_python_runs() -> None:
    made = blocked_in(
        function("main", 0.2, 0.6, line=40),
        foreign("Condition.wait", 0.4, 0.4),
    )
    assert "for 60 % of the step (it runs 33 % of it)" in first(made).description


def test_a_sampler_that_works_while_its_loader_is_opened_is_the_cause() -> None:
    torchs = "/lib/torch/utils/data/dataloader.py"
    opens = function(
        "_BaseDataLoaderIter.__init__", 0.0, 0.7, Phase.DATA, users_own=False, file=torchs
    )
    functions = [
        function("Batches.__iter__", 0.7, 0.7, Phase.DATA, line=19),
        opens,
        function("Data.__getitem__", 0.1, 0.1, Phase.DATA, line=8),
    ]
    finding = first(cpu_bound_data(1.0, 0, functions))
    assert finding.location == Location("/home/me/train.py", 19, "Batches.__iter__")
    assert {e.name: e.value for e in finding.evidence}["cause"] == "sampler"


def test_writing_in_each_step_is_named() -> None:
    functions = [
        function("log", 0.02, 0.4, line=33),
        function("<method 'write' of '_io.TextIOWrapper' objects>", 0.1, file="~", users_own=False),
        function("<built-in method posix.fsync>", 0.28, file="~", users_own=False),
    ]
    finding = first(healthy_cpu(timeline=profiled(functions)))
    assert "writes or logs in each step" in finding.description
    assert finding.location == Location("/home/me/train.py", 33, "log")


def test_a_line_that_writes_is_known_by_its_text() -> None:
    keep = function("keep", 0.4, line=33)
    lines = {(keep.file, 33): "os.fsync(file.fileno())"}
    finding = first(healthy_cpu(timeline=profiled([keep]), source_lines=lines))
    assert "writes or logs in each step" in finding.description
    without = first(healthy_cpu(timeline=profiled([keep])))
    assert "writes" not in without.description


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ("with open(self.index) as lines:", False),
        ("with open(path, 'rb') as file:", False),
        ('lines = open(os.path.join(folder, "taxa"))', False),
        ('with open(path, "a") as file:', True),
        ("file = open(path, mode='wb')", True),
        ('with path.open("r+") as file:', True),
    ],
)
def test_a_line_that_opens_a_file_writes_only_by_its_mode(line: str, writes: bool) -> None:
    reads = function("count_lines", 0.4, line=23)
    lines = {(reads.file, 23): line}
    finding = first(healthy_cpu(timeline=profiled([reads]), source_lines=lines))
    assert ("writes or logs" in finding.description) is writes


@pytest.mark.parametrize(
    "name", ["_open_zipfile_writer_file.__exit__", "_save.<locals>.persistent_id"]
)
def test_a_librarys_writer_writes_in_whichever_of_its_functions(name: str) -> None:
    closes = function(name, 0.4, file="/lib/torch/serialization.py", users_own=False)
    functions = [replace(closes, blocked_seconds=0.35), function("keep", 0.0, 0.4, line=13)]
    finding = first(healthy_cpu(timeline=profiled(functions)))
    assert "in keep: it writes or logs" in finding.description


def test_of_functions_that_leave_the_work_to_a_library_the_innermost_is_named() -> None:
    functions = [
        function("main", 0.03, 0.5, line=31),
        function("keep", 0.0, 0.47, line=13),
        function("_save", 0.47, file="/lib/torch/serialization.py", users_own=False),
    ]
    finding = first(healthy_cpu(timeline=profiled(functions)))
    assert finding.location == Location("/home/me/train.py", 13, "keep")
    assert finding.gain_upper_bound == pytest.approx(1 / (1 - 0.47), rel=1e-3), "its own part"


def test_what_asks_a_loader_for_batches_does_not_prepare_them() -> None:
    functions = [
        function("main", 0.0, 0.6, Phase.DATA, line=42),
        function("fetch", 0.6, 0.6, Phase.DATA, users_own=False, file="/torch/utils/data/f.py"),
        function("main", 0.1, 0.1, Phase.FORWARD, line=43),
    ]
    assert "not measured" in first(cpu_bound_data(1.0, 0, functions)).description
    functions[1] = function("pad", 0.6, 0.6, Phase.DATA, line=32)
    finding = first(cpu_bound_data(1.0, 0, functions))
    assert finding.description.endswith("preparing batches, most of it in pad")
    assert finding.location == Location("/home/me/train.py", 32, "pad")


def test_the_rest_of_the_step_is_all_that_a_plain_run_knows_of_python() -> None:
    finding = first(healthy_cpu(StepSplit(0.1, None, 1.0, 1.0, 0.4, 7.5)))
    assert finding.type is FindingType.HOST_BOUND
    assert finding.severity > 0.7
    assert finding.location is None
    assert finding.missing_sources == (Source.HOST.value, Source.TIMELINE.value)


def test_a_device_that_waits_for_the_host_is_host_bound_without_a_host_profile() -> None:
    finding = first(healthy_gpu(idle(total=0.5, host=0.45)))
    assert finding.type is FindingType.HOST_BOUND
    assert finding.gain_upper_bound == pytest.approx(1 / 0.55, rel=1e-3)


def test_of_findings_of_severity_one_the_larger_gain_is_first() -> None:
    """A symptom comes last only beside its cause."""
    launches = LaunchFigures(8000, 2.5, 0.5, 0.1, 0.0)
    figures = replace(idle(total=0.9, data=0.6, launch=0.8), launches=launches)
    found = diagnose(healthy_gpu(figures))[:2]
    assert [f.type for f in found] == [FindingType.LAUNCH_BOUND, FindingType.DATA_LOADING]
    assert [f.severity for f in found] == [1.0, 1.0]
    assert [f.gain_upper_bound for f in found] == [pytest.approx(5.0), pytest.approx(2.5)]


def test_waits_that_the_profilers_themselves_cause_are_no_warning() -> None:
    waits = healthy_gpu(idle(total=0.2, host=0.17))
    assert first(waits).severity > WARNING
    assert first(replace(waits, profiling_share=0.18)).severity < WARNING


def test_python_beside_a_busy_device_is_no_finding() -> None:
    split = StepSplit(0.1, None, 1.0, 1.0, 0.4, 7.5)
    busy = healthy_gpu(result=result(split, devices=(gpu(),)))
    assert found(busy, FindingType.HOST_BOUND) is None


def test_without_a_profile_an_idle_device_waits_for_data_first_then_for_python() -> None:
    split = StepSplit(4.0, None, 0.5, 0.5, 0.1, 4.9)  # as where .item() ends each step
    for active, share in ((60.0, None), (20.0, 0.4)):
        devices = (gpu(graphics_activity_percent=active),)
        evidence = healthy_gpu(ProfileFigures(), result=result(split, devices=devices))
        finding = found(replace(evidence, timeline=None), FindingType.HOST_BOUND)
        told = None if finding is None else finding.evidence[0].value
        assert told == (None if share is None else pytest.approx(share))


def test_a_small_batch_leaves_memory_and_multiprocessors_unused() -> None:
    use = gpu(memory_used_bytes=8 << 30, sm_activity_percent=30.0)
    small = healthy_gpu(result=result(devices=(use,), batch_size=4.0))
    finding = found(small, FindingType.SMALL_BATCH)
    assert finding is not None
    assert finding.severity > 0.7
    assert finding.knob == "batch_size"
    assert finding.gain_upper_bound is None
    waiting = replace(small, figures=idle(total=0.7, data=0.6))
    assert found(waiting, FindingType.SMALL_BATCH) is None


def test_room_in_memory_on_a_busy_device_is_a_note() -> None:
    roomy = healthy_gpu(result=result(devices=(gpu(memory_used_bytes=20 << 30),)))
    finding = found(roomy, FindingType.MEMORY_ALLOCATION)
    assert finding is not None
    assert finding.level == "note"
    assert finding.knob == "batch_size"


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        ({"retries": 20}, "tried again 20 times"),
        ({"reserved_bytes": 100, "inactive_split_bytes": 60}, "60 % of the reserved memory"),
        ({"reserved_bytes": 99, "total_bytes": 100}, "99 % of the device's memory"),
        ({"device_allocations": 200}, "20.0 times a step"),
    ],
)
def test_memory_that_costs_time_or_runs_out(memory: dict[str, int], text: str) -> None:
    figures = replace(FIGURES, launches=None)
    state = replace(AllocatorState(0, 0, 0, 0, 0, 0, 0), **memory)
    timeline = Timeline(("kineto",), 0, 10, memory=[state])
    finding = first(healthy_gpu(figures, timeline=timeline))
    assert finding.type is FindingType.MEMORY_ALLOCATION
    assert text in finding.description


def test_precision_without_a_timeline_is_a_warning_without_a_bound() -> None:
    use = gpu(tensor_activity_percent=0.0)
    finding = first(healthy_gpu(ProfileFigures(), result=result(devices=(use,))))
    assert finding.type is FindingType.PRECISION
    assert finding.severity == WARNING
    assert finding.gain_upper_bound is None
    old = replace(healthy_gpu(), roots=(), timeline=None)
    assert found(old, FindingType.PRECISION) is None


def test_no_tensor_cores_no_finding() -> None:
    outside = replace(FIGURES, precision=PrecisionFigures(0.0, 0.7))
    pascal = replace(healthy_gpu(outside).roots[0], compute_capability=(6, 1))
    assert found(healthy_gpu(outside, roots=(pascal,)), FindingType.PRECISION) is None


LOW: dict[str, object] = {"occupancy_percent": 10.0, "sm_percent": 20.0}
TIED = {"registers": 1.0, "shared_memory": 4.0, "block_size": 1.0, "blocks": 32.0}


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        (LOW | {"theoretical_occupancy_percent": 12.5}, FindingType.OCCUPANCY, "by registers:"),
        (LOW | {"grid": (16, 1, 1)}, FindingType.OCCUPANCY, "by grid"),
        (LOW, FindingType.OCCUPANCY, "though its limits allow 75 %"),
        (
            LOW | {"theoretical_occupancy_percent": 12.5, "occupancy_limits": dict(TIED)},
            FindingType.OCCUPANCY,
            "by registers and block size",
        ),
        (
            LOW | {"theoretical_occupancy_percent": None, "occupancy_limits": {}},
            FindingType.OCCUPANCY,
            "its limit was not recorded",
        ),
        (
            LOW | {"theoretical_occupancy_percent": 12.5, "occupancy_limits": {"registers": 1.0}},
            FindingType.OCCUPANCY,
            "its limit was not recorded",
        ),
        ({"occupancy_percent": 10.0, "sm_percent": None}, FindingType.OCCUPANCY, "10 %"),
        ({"sm_percent": 35.0}, FindingType.KERNEL_EFFICIENCY, "SM throughput is 35 %: my_kernel"),
        (
            {"sm_percent": 35.0, "duration_ns": None},
            FindingType.KERNEL_EFFICIENCY,
            "SM throughput is 35 %",
        ),
        ({"branch_efficiency_percent": 40.0}, FindingType.WARP_EFFICIENCY, "40 %: my_kernel"),
        (
            {"branch_efficiency_percent": 34.4, "block": (11, 1, 1)},
            FindingType.WARP_EFFICIENCY,
            "34 %, in blocks of 11 threads: my_kernel",
        ),
        (
            {"dram_percent": 95.0, "sm_percent": 20.0},
            FindingType.MEMORY_BANDWIDTH,
            "waits for memory",
        ),
        (
            {"dram_percent": 20.0, "group": Group.ELEMENTWISE},
            FindingType.MEMORY_BANDWIDTH,
            "uses 20 % of the memory's bandwidth",
        ),
    ],
)
def test_a_kernel_is_diagnosed_by_its_counters(
    changes: dict[str, object], kind: FindingType, text: str
) -> None:
    finding = first(Evidence(timeline=measured_kernels(kernel(), kernel(**changes))))
    assert finding.type is kind
    assert finding.severity > WARNING
    assert text in finding.description
    assert finding.gain_upper_bound is None


@pytest.mark.parametrize(("sm", "level"), [(39.0, "critical"), (41.0, "warning"), (75.0, None)])
def test_counters_alone_stand_by_themselves_beside_a_timeline_they_are_a_note(
    sm: float, level: str | None
) -> None:
    counters = measured_kernels(kernel(sm_percent=sm, duration_ns=5000.0))
    alone = found(Evidence(timeline=counters), FindingType.KERNEL_EFFICIENCY)
    assert (None if alone is None else alone.level) == level
    slow = replace(counters, kernel_metrics=(kernel(sm_percent=sm),))
    beside = found(Evidence(timeline=slow, figures=FIGURES), FindingType.KERNEL_EFFICIENCY)
    assert beside is None or beside.level == "note"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        (LOW, FindingType.OCCUPANCY),
        ({"branch_efficiency_percent": 40.0}, FindingType.WARP_EFFICIENCY),
        ({"dram_percent": 95.0, "sm_percent": 20.0}, FindingType.MEMORY_BANDWIDTH),
    ],
)
def test_bad_counters_of_any_kind_are_a_note_where_a_timeline_was_not_replayed(
    changes: dict[str, object], kind: FindingType
) -> None:
    counters = measured_kernels(kernel(**changes))
    finding = found(Evidence(timeline=counters, figures=FIGURES), kind)
    assert finding is not None
    assert (finding.level, finding.replayed_gain) == ("note", None)


def test_kernels_a_step_are_told_only_where_steps_are_marked() -> None:
    launches = replace(FIGURES.launches, kernels_per_step=None)
    unmarked = replace(idle(total=0.6, launch=0.55), launches=launches, steps=None, step_ms=None)
    finding = found(healthy_gpu(unmarked), FindingType.LAUNCH_BOUND)
    assert finding is not None
    assert finding.description.endswith("55 % of the step: kernels of 32.0 µs each")


def test_low_occupancy_of_a_fast_kernel_is_a_note_and_of_a_short_one_nothing() -> None:
    fast = kernel(occupancy_percent=10.0, sm_percent=90.0)
    short = kernel(occupancy_percent=5.0, sm_percent=2.0, duration_ns=3000.0)
    (finding,) = diagnose(Evidence(timeline=measured_kernels(fast, short)))
    assert (finding.type, finding.level) == (FindingType.OCCUPANCY, "note")
    assert diagnose(Evidence(timeline=measured_kernels(kernel(), short))) == ()


def test_the_slowest_rank_is_named_by_its_arrival() -> None:
    waiting = replace(FIGURES, communication=CommunicationFigures(0.45, 0.40, 1, None))
    working = replace(FIGURES, communication=CommunicationFigures(0.05, 0.02, 1, None))
    evidence = healthy_gpu(working, rank_figures=(waiting, working, waiting))
    finding = first(evidence)
    assert finding.type is FindingType.LOAD_IMBALANCE
    assert "rank 1" in finding.description
    assert finding.gain_upper_bound == pytest.approx(9.8 / ((6 + 9.8 + 6) / 3), rel=1e-3)
    assert found(evidence, FindingType.MULTI_GPU_COMM) is None


@pytest.mark.parametrize(
    ("slow", "told"), [((6.0, 6.0), True), ((4.0, 6.0), False), ((), False), ((0.0, 0.0), False)]
)
def test_a_rank_of_a_plain_run_is_slower_if_it_is_in_both_halves(
    slow: tuple[float, ...], told: bool
) -> None:
    evidence = healthy_cpu(rank_work_ms=((4.0, 4.0), slow))
    finding = found(evidence, FindingType.LOAD_IMBALANCE)
    assert (finding is not None) is told
    assert finding is None or "rank 1 works 50 % longer" in finding.description


def test_the_line_of_the_slowest_rank_is_that_of_its_additional_time() -> None:
    alike, logs = function("main", 0.1, 0.9), function("log", 0.4, line=57)
    ranks = ([alike], [alike, logs])
    evidence = healthy_cpu(rank_work_ms=((4.0, 4.0), (6.0, 6.0)), rank_functions=ranks)
    finding = found(evidence, FindingType.LOAD_IMBALANCE)
    assert finding is not None
    assert finding.location == Location("/home/me/train.py", 57, "log")
    finding = found(replace(evidence, rank_functions=([alike],) * 2), FindingType.LOAD_IMBALANCE)
    assert finding is not None
    assert finding.location is None


def test_switches_matter_where_they_bite_and_only_their_names_are_told() -> None:
    switches = ("CUDA_LAUNCH_BLOCKING", "NCCL_P2P_DISABLE", "TORCHDYNAMO_DISABLE")
    finding = first(healthy_gpu(switches=switches))
    assert finding.type is FindingType.ENVIRONMENT
    assert [e.value for e in finding.evidence] == ["CUDA_LAUNCH_BLOCKING"]
    several = healthy_gpu(result=result(ranks=4), switches=switches)
    assert [e.value for e in first(several).evidence] == list(switches[:2])
    assert found(healthy_cpu(switches=switches), FindingType.ENVIRONMENT) is None


def test_topology_is_told_where_ranks_meet() -> None:
    pair = GpuPair(0, 1, path="host bridge", peer_to_peer=False, nvlink=False)
    barred = Topology((8,), pairs=(pair,), findings=("GPUs 0-1 cannot read: …",))
    finding = first(healthy_gpu(result=result(devices=(gpu(),), topology=barred)))
    assert finding.type is FindingType.TOPOLOGY
    assert finding.severity == 0.7


def test_heat_is_a_finding_and_the_power_cap_only_if_it_costs_clock() -> None:
    hot = [sample(["hardware thermal slowdown"], 1500.0), sample(), sample()]
    finding = first(healthy_gpu(device_samples=tuple(hot)))
    assert finding.type is FindingType.THROTTLING
    assert "hardware thermal slowdown" in finding.description
    assert finding.gain_upper_bound == pytest.approx(1900 / 1500, rel=1e-3)
    capped = tuple([sample(["software power cap"], 1880.0)] * 5 + [sample()])
    assert found(healthy_gpu(device_samples=capped), FindingType.THROTTLING) is None


def test_findings_change_when_a_source_is_withheld() -> None:
    figures = replace(idle(total=0.4, sync=0.3), syncs=SyncFigures(0.4, 2))
    whole = healthy_gpu(figures)
    assert first(whole).type is FindingType.CPU_GPU_SYNC
    withheld = replace(whole, figures=ProfileFigures())
    assert Source.TIMELINE not in withheld.sources
    assert found(withheld, FindingType.CPU_GPU_SYNC) is None


def test_every_type_has_one_diagnosis_with_documentation_known_thresholds_and_knobs() -> None:
    diagnoses = all_diagnoses()
    assert [d.type for d in diagnoses] == list(FindingType)
    for diagnosis in diagnoses:
        assert diagnosis.documentation
        assert set(diagnosis.thresholds) <= set(DEFAULTS)
    used = {name for d in diagnoses for name in d.thresholds}
    assert used == set(DEFAULTS)


def test_recommended_knobs_exist() -> None:
    knobs = {knob.name for knob in all_knobs()}
    spoilt = replace(
        idle(total=0.9, data=0.3, sync=0.3, launch=0.3),
        launches=LaunchFigures(1500, 3.0, 0.5, 0.9, 20.0),
        copies=(CopyShare("h2d", True, 0.3, 0.25, 1, 1e8),),
        precision=PrecisionFigures(0.0, 0.7),
        group_shares={"elementwise": 0.9},
    )
    named = {f.knob for f in diagnose(healthy_gpu(spoilt)) if f.knob is not None}
    assert len(named) >= 4
    assert named <= knobs
