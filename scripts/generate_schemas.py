"""Write the JSON Schemas of gpurun's documents to `gpurun/schemas/`; `--check` only compares.

They are schemas of 2020-12, generated from the record classes. They say what `codec.from_json`
takes: unknown fields are errors, fields with a default may be absent. A test holds them current.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, Union

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.records import events, samples
from gpurun.records.bench.benchmark import (
    BASELINE_SCHEMA,
    BENCHMARK_SCHEMA,
    EXPORT_SCHEMA,
    AcceptedBaseline,
    BenchmarkExport,
    BenchmarkRecord,
)
from gpurun.records.bench.bisection import BISECTION_SCHEMA, BisectionReport
from gpurun.records.bench.comparison import COMPARISON_SCHEMA, SELFTEST_SCHEMA, Comparison, Selftest
from gpurun.records.bench.history import HISTORY_SCHEMA, History
from gpurun.records.codec import to_json
from gpurun.records.command_reports import (
    BLAME_SCHEMA,
    DOCTOR_SCHEMA,
    EJECT_SCHEMA,
    BlameReport,
    DoctorReport,
    EjectReport,
)
from gpurun.records.diagnosis import (
    DIAGNOSIS_SCHEMA,
    PROFILE_COMPARISON_SCHEMA,
    DiagnosisReport,
    ProfileComparison,
)
from gpurun.records.monitor import MONITOR_SCHEMA, MonitorReport
from gpurun.records.result import RESULT_SCHEMA, RunResult
from gpurun.records.scaling import SCALING_SCHEMA, ScalingReport
from gpurun.records.spec import SPEC_SCHEMA, RunSpec
from gpurun.records.tuning import SETTINGS_SCHEMA, TUNING_SCHEMA, SavedSettings, TuningReport

FOLDER = Path(__file__).resolve().parent.parent / "gpurun" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

DOCUMENTS: dict[str, type[Any]] = {
    SPEC_SCHEMA: RunSpec,
    RESULT_SCHEMA: RunResult,
    TUNING_SCHEMA: TuningReport,
    SETTINGS_SCHEMA: SavedSettings,
    DOCTOR_SCHEMA: DoctorReport,
    EJECT_SCHEMA: EjectReport,
    DIAGNOSIS_SCHEMA: DiagnosisReport,
    PROFILE_COMPARISON_SCHEMA: ProfileComparison,
    MONITOR_SCHEMA: MonitorReport,
    BLAME_SCHEMA: BlameReport,
    BENCHMARK_SCHEMA: BenchmarkRecord,
    BASELINE_SCHEMA: AcceptedBaseline,
    EXPORT_SCHEMA: BenchmarkExport,
    COMPARISON_SCHEMA: Comparison,
    SCALING_SCHEMA: ScalingReport,
    HISTORY_SCHEMA: History,
    BISECTION_SCHEMA: BisectionReport,
    SELFTEST_SCHEMA: Selftest,
}
"""The record of each whole document, by the name in its `schema` field."""

LINES: dict[str, tuple[type[Any], ...]] = {
    name: tuple(
        cls
        for cls in vars(module).values()
        if isinstance(cls, type) and isinstance(getattr(cls, "kind", None), str)
    )
    for name, module in ((events.EVENTS_SCHEMA, events), (samples.SAMPLES_SCHEMA, samples))
}
"""The records of each file of lines."""

SCALARS: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def all_schemas() -> dict[str, dict[str, Any]]:
    """Every schema by the name of its file, "result@1.json" for `gpurun/result@1`."""
    documents = {name: document_schema(name, cls) for name, cls in DOCUMENTS.items()}
    lines = {name: line_schema(name, classes) for name, classes in LINES.items()}
    return {f"{name.partition('/')[2]}.json": s for name, s in {**documents, **lines}.items()}


def document_schema(name: str, cls: type[Any]) -> dict[str, Any]:
    """Schema of a document that is one record; its `schema` field must hold `name`."""
    definitions: dict[str, Any] = {}
    body = _record(cls, definitions)
    body["properties"]["schema"] = {"const": name}
    return {"$schema": DIALECT, "$id": name, "title": cls.__name__, **body, "$defs": definitions}


def line_schema(name: str, classes: tuple[type[Any], ...]) -> dict[str, Any]:
    """Schema of one line of a file whose lines say by `event` which record they are."""
    definitions: dict[str, Any] = {}
    for cls in classes:
        body = _record(cls, definitions)
        body["properties"] = {"event": {"const": cls.kind}, **body["properties"]}
        body["required"] = ["event", *body["required"]]
        definitions[cls.__name__] = body
    options = [{"$ref": f"#/$defs/{cls.__name__}"} for cls in classes]
    return {"$schema": DIALECT, "$id": name, "oneOf": options, "$defs": definitions}


def _record(cls: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    properties = {}
    for field in fields:
        properties[field.name] = dict(_kind(hints[field.name], definitions))
        if field.default is not dataclasses.MISSING:
            properties[field.name]["default"] = to_json(field.default)
    return {
        "description": inspect.cleandoc(cls.__doc__ or ""),
        "type": "object",
        "properties": properties,
        "required": [
            f.name
            for f in fields
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ],
        "additionalProperties": False,
    }


def _kind(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if origin in (Union, types.UnionType):
        return {"anyOf": [_kind(option, definitions) for option in args]}
    if origin is tuple and args[-1] is not Ellipsis:
        items = [_kind(item, definitions) for item in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    if origin in (tuple, list):
        return {"type": "array", "items": _kind(args[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _kind(args[1], definitions)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # a record may hold records of its own kind
            definitions[kind.__name__] = _record(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"records cannot hold {kind!r}")


def out_of_date(folder: Path = FOLDER) -> list[str]:
    """Names of the files that differ from the records, are missing, or are left over."""
    wanted = schema_texts()
    found = {path.name: path.read_text() for path in folder.glob("*.json")}
    return sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))


def schema_texts() -> dict[str, str]:
    """The text of each file."""
    return {n: json.dumps(s, indent=2, ensure_ascii=False) + "\n" for n, s in all_schemas().items()}


def main() -> int:
    """Write or check; exit 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if out of date")
    check = parser.parse_args().check
    stale = out_of_date()
    if not check:
        FOLDER.mkdir(exist_ok=True)
        for name in stale:
            (FOLDER / name).unlink(missing_ok=True)
            if name in schema_texts():
                (FOLDER / name).write_text(schema_texts()[name])
    verb = "is out of date" if check else "written"
    for name in stale:
        print(f"{name} {verb}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
