"""Documents keep what they hold, refuse what is off, and match the schemas that are checked in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpurun.measure import summarise_run
from gpurun.records.codec import RecordError, from_json, to_json
from gpurun.records.events import KnobEvent, StopEvent
from gpurun.records.result import DeviceUse, HostUse, RunResult
from gpurun.records.spec import RunSpec, Setting, StopRule, TrialSpec
from gpurun.records.tuning import (
    Candidate,
    GuardVerdict,
    LadderRow,
    LossCurves,
    Proof,
    SavedSettings,
    TrialPurpose,
    TrialRecord,
    TuningReport,
)
from scripts.generate_schemas import DOCUMENTS, FOLDER, all_schemas, out_of_date
from tests.unit.recorded_runs import end, epoch, loader, root, steady, write_events

SPEC = RunSpec(
    run_dir="/data/.gpurun/runs/1",
    launcher_pid=10,
    settings=(Setting("loader_workers", 8), Setting("compile", {"mode": "default"})),
    training_loaders=("train.py:10#0",),
    trial=TrialSpec(stop=StopRule(20, 2.0, 500, 5, 3), seed=4, hold_at_first_step=True),
)
CANDIDATE = Candidate({"tf32": True}, 100.0, None, 5, None)
REPORT = TuningReport(
    verdict="faster",
    speedup=2.0,
    speedup_confidence_interval=(1.8, 2.2),
    p_value=0.001,
    statistically_significant=True,
    baseline=CANDIDATE,
    chosen=CANDIDATE,
    larger_batch=None,
    ladder=(LadderRow("precision", {"tf32": True}, "numerics", True, 1.0, 2.0, (1.8, 2.2)),),
    trials=(
        TrialRecord(1, TrialPurpose.PROBE, {}, "stopped", 1.0, None, 5, 0.5, 3.0, "", "runs/1"),
    ),
    tuning_seconds=60.0,
    proof=Proof(2.0, (1.8, 2.2), 0.001, True, True, ((1.0, 2.0), (1.0, 2.1))),
    guard=GuardVerdict(True, 0.001, 0.01, (), LossCurves((1.0, None), (1.0, 0.9))),
    rejections=(),
    isolation="overlay",
    decisions=("tried tf32",),
    fingerprint={"cores": 2.0},
    command=("train.py",),
)
SETTINGS = SavedSettings({"tf32": True}, ("train.py:10#0",), 2.0, {}, ("train.py",))


def result(run_dir: Path) -> RunResult:
    write_events(run_dir, [loader(), root(), steady(50), end()])
    return summarise_run(run_dir, exit_code=0, wall_seconds=1.0)


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return loaded


def test_the_checked_in_schemas_are_those_of_the_records() -> None:
    assert out_of_date() == [], "run scripts/generate_schemas.py"


def test_a_schema_that_is_out_of_date_is_found(tmp_path: Path) -> None:
    for name, text in ((p.name, p.read_text()) for p in FOLDER.glob("*.json")):
        (tmp_path / name).write_text(text)
    (tmp_path / "result@1.json").write_text("{}")
    (tmp_path / "left_over.json").write_text("{}")
    (tmp_path / "spec@1.json").unlink()
    assert out_of_date(tmp_path) == ["left_over.json", "result@1.json", "spec@1.json"]


@pytest.mark.parametrize("name", sorted(all_schemas()))
def test_every_schema_is_valid_itself(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize("document", [SPEC, REPORT, SETTINGS], ids=["spec", "tuning", "settings"])
def test_documents_come_back_as_they_were_and_fit_their_schema(document: Any) -> None:
    plain = json.loads(json.dumps(to_json(document)))
    assert from_json(type(document), plain) == document
    jsonschema.validate(plain, schema(document.schema.partition("/")[2] + ".json"))


def test_a_measured_result_comes_back_and_fits_its_schema(tmp_path: Path) -> None:
    measured = result(tmp_path)
    plain = json.loads(json.dumps(to_json(measured), allow_nan=False))
    assert from_json(RunResult, plain) == measured
    jsonschema.validate(plain, schema("result@1.json"))


def test_event_lines_fit_their_schema(tmp_path: Path) -> None:
    events = [
        loader(),
        root(),
        epoch(0, "begin", 0),
        steady(3),
        KnobEvent("tf32", "applied", ""),
        StopEvent("enough", 3, None, 9),
        end(),
    ]
    path = write_events(tmp_path, events)
    for line in path.read_text().splitlines():
        jsonschema.validate(json.loads(line), schema("events@1.json"))


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_schemas_refuse_unknown_and_missing_fields(name: str) -> None:
    validator = jsonschema.Draft202012Validator(schema(name.partition("/")[2] + ".json"))
    assert not validator.is_valid({})
    assert not validator.is_valid({"schema": name, "invented": 1})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"invented": 1}, r"\$: unknown field 'invented'"),
        ({"launcher_pid": "10"}, r"\$.launcher_pid: expected int, found str"),
        ({"launcher_pid": True}, r"\$.launcher_pid: expected int, found bool"),
        ({"settings": [{"knob": "tf32"}]}, r"\$.settings\[0\]: field 'value' is missing"),
        ({"settings": {}}, r"\$.settings: expected a list"),
        ({"trial": {"stop": 3}}, r"\$.trial.stop: expected an object"),
    ],
)
def test_a_document_that_is_off_is_refused_by_the_place(
    change: dict[str, Any], complaint: str
) -> None:
    document = {**to_json(SPEC), **change}
    with pytest.raises(RecordError, match=complaint):
        from_json(RunSpec, document)
    assert not jsonschema.Draft202012Validator(schema("spec@1.json")).is_valid(document)


def test_a_missing_field_is_named() -> None:
    document = to_json(SPEC)
    del document["run_dir"]
    with pytest.raises(RecordError, match="field 'run_dir' is missing"):
        from_json(RunSpec, document)


def test_a_pair_must_have_two_members() -> None:
    document = to_json(REPORT)
    document["proof"]["pairs"] = [[1.0, 2.0, 3.0]]
    with pytest.raises(RecordError, match="expected 2 items, found 3"):
        from_json(TuningReport, document)
    assert not jsonschema.Draft202012Validator(schema("tuning@2.json")).is_valid(document)


def test_whole_numbers_are_taken_for_figures_and_none_stays_none() -> None:
    host = from_json(HostUse, {**to_json(HostUse(1.0, 2.0, 3, None)), "cpu_percent": 50})
    assert isinstance(host.cpu_percent, float)
    assert host.processes is None


def test_each_optional_figure_of_a_device_may_be_null(tmp_path: Path) -> None:
    nothing = dict.fromkeys(DeviceUse.__dataclass_fields__)
    known = {**nothing, "device": "H200", "throttle_reasons": [], "window_seconds": 1.0}
    known["refused"] = ["power: not supported"]
    use = from_json(DeviceUse, known)
    document = {**to_json(result(tmp_path)), "devices": [to_json(use)]}
    jsonschema.validate(document, schema("result@1.json"))


def test_reading_a_record_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules);"
        "import gpurun.records.tuning, gpurun.records.facts;"
        "print(*{m.partition('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names) - {'gpurun'})"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert output.split() == []
