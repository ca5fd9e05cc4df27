"""The rules of docs/ARCHITECTURE.md, read from the imports; each checker is shown to bite."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_LINES = 450

WIRE = ("gpurun.records", "gpurun.errors", "gpurun.numa", "gpurun.identity_map")
APPLIED = "applied"
"""Folders of `knobs/` whose modules are loaded when a knob is applied, after torch."""
KNOBS = (*WIRE, "gpurun.knobs")
RUNTIME = ("gpurun.runtime", "gpurun.knobs", *WIRE)

OWNERS = {
    "torch": ("gpurun.launch.elastic_agent", "gpurun.launch.rendezvous"),
    "rich": ("gpurun.report",),
    "scipy": ("gpurun.stats",),
    "matplotlib": ("gpurun.report.plots",),
    "sqlalchemy": ("gpurun.bench.store",),
    "psycopg": ("gpurun.bench.store",),
    "pynvml": ("gpurun.measure.nvml",),
    "psutil": ("gpurun.measure.sampler", "gpurun.launch"),
    "prometheus_client": ("gpurun.report.live",),
    "tensorboard": ("gpurun.report.live.tensorboard_events",),
}
"""Who may import each heavy library in the launcher; knobs and runtime live beside torch anyway."""

FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__",),
    ("cli",),
    ("commands",),
    ("report", "eject"),
    ("bench", "scaling", "tuner"),
    ("pairs", "ddp"),
    ("same",),
    ("trials", "diagnoses", "profilers", "doctor"),
    ("isolation",),
    ("launch",),
    ("measure", "replay"),
    ("arguments", "formatting", "timeline", "runtime"),
    ("stats", "rundir", "knobs"),
    ("records", "errors", "numa", "identity_map", "version"),
)
"""The rooms of `gpurun`, floor by floor from the top: a room imports only floors below its own."""
USERS_PROCESS = ("runtime", "knobs")

MOST_FILES = 25
"""Files in a folder."""
SHARED_NAMES = ("__init__", "api")

STAIRS = ("core", "observe", "safety", "trial", "profile", "ddp", "boot", "bootstrap")
"""The rooms of `gpurun.runtime` from the lowest: a room imports itself and those before it."""

BEFORE_TORCH = tuple(
    f"gpurun.runtime.{name}"
    for name in (
        "bootstrap.sitecustomize",
        "boot.activate", "boot.rank_process", "boot.scripts_own_gpurun",
        "core.device_clock", "core.patching",
        "core.post_import", "core.recorder", "core.seeds",
        "ddp.install_ddp", "ddp.rank_info", "ddp.rank_zero_last",
        "observe.exit_metrics",
        "observe.loaded_modules", "observe.orphan_workers", "observe.step_clock",
        "profile.profiler_recordings",
        "trial.opened_files", "trial.planted_delay",
        "trial.prepare_trial", "trial.quiet_loggers",
    )
)  # fmt: skip
"""Modules of the runtime that a process loads before its script imports torch. All others load
afterwards and may import torch at their top."""

HEAVY = (
    "torch", "rich", "scipy", "matplotlib", "numpy", "psutil", "pynvml", "sqlalchemy", "psycopg",
    "prometheus_client", "tensorboard",
)  # fmt: skip


@dataclass(frozen=True)
class Import:
    """Module `of` imports module `what`; `top`: as it is imported itself, not later on demand."""

    of: str
    what: str
    top: bool


@dataclass(frozen=True)
class Source:
    """One module of the package."""

    name: str
    text: str
    folder: bool = False
    """Whether it is the `__init__.py` of a folder."""

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def read_package(root: Path) -> list[Source]:
    sources = []
    for path in sorted((root / "gpurun").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources.append(Source(name, path.read_text(encoding="utf-8"), parts[-1] == "__init__"))
    return sources


def within(module: str, zones: tuple[str, ...]) -> bool:
    return any(module == zone or module.startswith(f"{zone}.") for zone in zones)


def imports_of(source: Source, modules: set[str]) -> Iterator[Import]:
    """Every import, `from package import module` resolved to the module where there is one."""

    def visit(node: ast.AST, top: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (Import(source.name, alias.name, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{source.name} imports relatively"
                for alias in child.names:
                    deeper = f"{child.module}.{alias.name}"
                    what = deeper if deeper in modules else str(child.module)
                    yield Import(source.name, what, top)
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from visit(child, top and not lazy)

    return visit(source.tree, True)


def all_imports(sources: list[Source]) -> list[Import]:
    modules = {source.name for source in sources}
    return [found for source in sources for found in imports_of(source, modules)]


def zone_faults(imports: list[Import]) -> list[str]:
    return [f"{i.of} imports {i.what}" for i in imports if not _allowed(i)]


def _allowed(found: Import) -> bool:
    ours = within(found.what, ("gpurun",))
    library = found.what.partition(".")[0]
    standard = library in sys.stdlib_module_names
    if within(found.of, WIRE):
        return standard or within(found.what, WIRE)
    if within(found.of, ("gpurun.runtime",)):
        after_torch = not (found.top and within(found.of, BEFORE_TORCH))
        beside_torch = library == "torch" and after_torch
        lazy_library = library == "numpy" and not found.top
        users_own = library == "sitecustomize" and within(found.of, ("gpurun.runtime.bootstrap",))
        allowed = beside_torch or lazy_library or users_own
        return standard or allowed or within(found.what, RUNTIME)
    if within(found.of, ("gpurun.knobs",)):
        lazy = not found.top or APPLIED in found.of.split(".")
        if within(found.what, KNOBS):
            return lazy or APPLIED not in found.what.split(".")
        return standard or (lazy and not ours)
    return not within(found.what, ("gpurun.runtime",))


def room_of(module: str) -> str:
    """The room of a module: what follows `gpurun.` in its name; "" for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def floor_faults(imports: list[Import]) -> list[str]:
    """Imports of a room that does not stand below, those inside of functions included."""
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    faults = []
    for i in imports:
        ours, theirs = room_of(i.of), room_of(i.what)
        if not within(i.what, ("gpurun",)) or "" in (ours, theirs) or ours == theirs:
            continue
        lost = [room for room in (ours, theirs) if room not in floor]
        if lost:
            faults.append(f"{lost[0]} stands on no floor")
        elif floor[ours] >= floor[theirs]:
            faults.append(f"{i.of} imports {i.what}, which does not stand below it")
    return sorted(set(faults))


def floors_picture() -> str:
    """The floors as a Mermaid picture, as docs/ARCHITECTURE.md shows them."""
    lines = ["```mermaid", "flowchart TB"]
    for number, rooms in enumerate(FLOORS):
        lines.append(f'    subgraph f{number}[" "]')
        lines.extend(f'        {room}["{room}"]' for room in rooms)
        lines.append("    end")
    lines.extend(f"    f{number} --> f{number + 1}" for number in range(len(FLOORS) - 1))
    lines.append("    classDef user fill:#fde9c9,stroke:#b7791f,color:#000")
    lines.append(f"    class {','.join(USERS_PROCESS)} user")
    lines.append("    classDef wire fill:#d9ead3,stroke:#38761d,color:#000")
    lines.append(f"    class {','.join(room_of(zone) for zone in WIRE)} wire")
    return "\n".join([*lines, "```"])


def lost_paths(text: str, root: Path) -> list[str]:
    """Paths below some folder that a document names in backticks, and that do not exist.

    Each begins at the repository or at the package: `gpurun/errors.py`, `launch/exit_code.py`.
    """
    named = re.findall(r"`((?:[\w.-]+/)+[\w-]+(?:/|\.py))`", text)
    places = (root, root / "gpurun")
    return [name for name in named if not any((place / name).exists() for place in places)]


def repeated_names(sources: list[Source]) -> list[str]:
    """File names that occur more than once."""
    names = Counter(source.name.rpartition(".")[2] for source in sources if not source.folder)
    return sorted(name for name, count in names.items() if count > 1 and name not in SHARED_NAMES)


def crowded_folders(sources: list[Source]) -> list[str]:
    """Folders of more than `MOST_FILES` files."""
    folders = Counter(s.name if s.folder else s.name.rpartition(".")[0] for s in sources)
    return [f"{name} has {count} files" for name, count in folders.items() if count > MOST_FILES]


def stair_faults(imports: list[Import]) -> list[str]:
    """Imports that go up between the rooms of the runtime."""
    zones = [(f"gpurun.runtime.{room}",) for room in STAIRS]
    return [
        f"{i.of} imports {i.what}, which stands above it"
        for i in imports
        for number, zone in enumerate(zones)
        if within(i.of, zone) and any(within(i.what, above) for above in zones[number + 1 :])
    ]


def owner_faults(imports: list[Import]) -> list[str]:
    faults = []
    for i in imports:
        owners = OWNERS.get(i.what.partition(".")[0])
        beside_torch = within(i.of, ("gpurun.runtime", "gpurun.knobs"))
        if owners is None or beside_torch:
            continue
        if not within(i.of, owners):
            faults.append(f"{i.of} imports {i.what}, which is for {', '.join(owners)}")
        elif i.top and i.what.partition(".")[0] in ("torch", "rich", "scipy", "matplotlib"):
            faults.append(f"{i.of} imports {i.what} before it is needed")
    return faults


def cycles(imports: list[Import]) -> list[str]:
    """Cycles among imports, those inside functions included, each as the path that closes it."""
    graph: dict[str, set[str]] = {}
    for i in imports:
        if i.what != i.of and within(i.what, ("gpurun",)):
            graph.setdefault(i.of, set()).add(i.what)
    found: list[str] = []
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            found.append(" → ".join((*path[path.index(module) :], module)))
        elif module not in done:
            for target in sorted(graph.get(module, ())):
                walk(target, (*path, module))
            done.add(module)

    for module in sorted(graph):
        walk(module, ())
    return found


def shape_faults(sources: list[Source]) -> list[str]:
    faults = []
    for source in sources:
        lines = source.text.count("\n")
        if lines > MOST_LINES:
            faults.append(f"{source.name} has {lines} lines")
        if source.text.strip() and not ast.get_docstring(source.tree):
            faults.append(f"{source.name} has no docstring")
    return faults


def heavy_imports(importtime: str) -> set[str]:
    """Heavy libraries in the output of `python -X importtime`."""
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in importtime.splitlines()}
    return names & set(HEAVY)


@pytest.fixture(scope="module")
def package() -> list[Source]:
    return read_package(REPOSITORY)


@pytest.fixture(scope="module")
def imports(package: list[Source]) -> list[Import]:
    return all_imports(package)


def test_imports_go_down(package: list[Source], imports: list[Import]) -> None:
    assert floor_faults(imports) == []
    assert {room_of(source.name) for source in package} - {""} <= {r for f in FLOORS for r in f}


@pytest.mark.parametrize(
    ("of", "what"),
    [
        ("gpurun.trials.failure_cause", "gpurun.tuner.trial_length"),  # up
        ("gpurun.bench.record_of_launches", "gpurun.tuner.decision"),  # to a neighbour
        ("gpurun.attic.things", "gpurun.records.spec"),  # from a room that stands nowhere
        ("gpurun.knobs.fused_loss", "gpurun.runtime.core.patching"),  # it hands in Hooks
    ],
)
def test_an_import_that_does_not_go_down_is_seen(of: str, what: str) -> None:
    assert len(floor_faults([Import(of, what, top=False)])) == 1


def test_the_architecture_shows_the_floors() -> None:
    text = (REPOSITORY / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert floors_picture() in text, "run: python scripts/house.py --picture, and paste it"


@pytest.mark.parametrize("name", ["docs/ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_files_that_a_map_names_are_there(name: str) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    assert lost_paths(text, REPOSITORY) == []
    assert lost_paths("see `launch/attic.py` and `launch/process.py`", REPOSITORY) == [
        "launch/attic.py"
    ]


def test_folders_are_small_and_file_names_differ(package: list[Source]) -> None:
    assert crowded_folders(package) == []
    assert repeated_names(package) == []
    full = [Source(f"gpurun.room.file{number}", "") for number in range(MOST_FILES)]
    assert crowded_folders(full) == []
    assert len(crowded_folders([*full, Source("gpurun.room", "", folder=True)])) == 1
    assert repeated_names([Source("gpurun.a.steps", ""), Source("gpurun.b.steps", "")]) == ["steps"]


def test_rooms_of_the_runtime_import_one_way(package: list[Source], imports: list[Import]) -> None:
    assert stair_faults(imports) == []
    up = Import(
        "gpurun.runtime.observe.watched_loaders", "gpurun.runtime.trial.trial_run", top=False
    )
    assert len(stair_faults([up])) == 1
    rooms = {
        source.name.split(".")[2]
        for source in package
        if source.name.count(".") > 1 and within(source.name, ("gpurun.runtime",))
    }
    assert rooms == set(STAIRS)


def test_the_runtime_never_imports_torch_before_the_script_does(package: list[Source]) -> None:
    known = {source.name for source in package}
    assert all(name in known for name in BEFORE_TORCH)
    # sitecustomize starts the runtime when it is imported
    names = [name for name in BEFORE_TORCH if not name.endswith("sitecustomize")]
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(*sys.modules)"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert {word.partition(".")[0] for word in done.stdout.split()} & set(HEAVY) == set()


def test_zones_are_kept(imports: list[Import]) -> None:
    assert zone_faults(imports) == []


def test_each_heavy_library_has_one_owner(imports: list[Import]) -> None:
    assert owner_faults(imports) == []


def test_one_module_removes_folders(package: list[Source]) -> None:
    """It follows no link, whatever is renamed meanwhile, and leaves alone what is mounted below."""
    own = [source.name for source in package if "shutil.rmtree(" in source.text]
    assert own == [], "use gpurun.isolation.folder_removal.discard"


def test_no_import_goes_in_a_circle(imports: list[Import]) -> None:
    assert cycles(imports) == []


def test_every_file_is_one_idea_with_a_docstring(package: list[Source]) -> None:
    assert shape_faults(package) == []


def test_importing_gpurun_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import gpurun; print(set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout) <= {"gpurun", "__future__"}


def test_a_plain_run_imports_nothing_heavy_in_the_launcher(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "empty.py").touch()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpurun", "empty.py"],
        cwd=tmp_path,
        env=clean_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "gpurun.cli" in done.stderr
    assert heavy_imports(done.stderr) == set()


def test_a_command_loads_charts_databases_and_statistics_only_when_it_uses_them() -> None:
    code = (
        "import importlib, sys\n"
        "from pkgutil import walk_packages\n"
        "import gpurun.commands as commands\n"
        "for found in walk_packages(commands.__path__, 'gpurun.commands.'):\n"
        "    importlib.import_module(found.name)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = {word.partition(".")[0] for word in done.stdout.split()}
    assert "gpurun" in loaded
    assert loaded & {"matplotlib", "sqlalchemy", "psycopg", "scipy", "torch", "rich"} == set()


def bad_tree(root: Path, files: dict[str, str]) -> list[Source]:
    """A small package: texts by the module's name below gpurun."""
    for name, text in files.items():
        path = root.joinpath("gpurun", *name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_package(root)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("tuner.trial", "from gpurun.runtime.observe.step_clock import Clock"),
        ("tuner.trial", "def f():\n    from gpurun.runtime import steps"),
        ("tuner.trial", "from gpurun import runtime"),
        ("runtime.boot.activate", "import torch"),
        ("runtime.steps", "import numpy"),
        ("runtime.steps", "def f():\n    import psutil"),
        ("runtime.steps", "from gpurun.tuner import trial"),
        ("runtime.steps", "try:\n    import rich\nexcept ImportError:\n    pass"),
        ("records.spec", "from gpurun.arguments.gpurun_toml import Config"),
        ("records.spec", "def f():\n    import torch"),
        ("knobs.compile", "import torch"),
        ("knobs.compile", "from gpurun.runtime.observe.step_clock import Clock"),
        ("knobs.compile", "def f():\n    from gpurun.tuner import trial"),
        ("knobs.compile", "def f():\n    from gpurun.runtime import steps"),
        ("knobs.compile", "from gpurun.knobs.applied.trees import leaves"),
        ("knobs.memory.applied.uncast", "def f():\n    from gpurun.runtime import steps"),
    ],
)
def test_a_breach_of_zones_is_seen(tmp_path: Path, module: str, text: str) -> None:
    empty = dict.fromkeys(("runtime.__init__", "runtime.steps", "tuner.trial"), "")
    sources = bad_tree(tmp_path, {**empty, module: text})
    assert len(zone_faults(all_imports(sources))) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("runtime.steps", "import os\nimport torch\ndef f():\n    import numpy"),
        ("runtime.boot.activate", "def f():\n    import torch"),
        ("knobs.compile", "from gpurun.knobs.api import Knob\ndef f():\n    import torch"),
        ("knobs.compile", "def f():\n    from gpurun.knobs.applied.trees import leaves"),
        ("knobs.memory.applied.uncast", "import torch\nfrom gpurun.knobs.applied import trees"),
        ("report.html", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rich"),
    ],
)
def test_what_the_rules_allow_is_no_breach(tmp_path: Path, module: str, text: str) -> None:
    imports = all_imports(bad_tree(tmp_path, {module: text}))
    assert zone_faults(imports) == []
    assert owner_faults(imports) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("tuner.trial", "def f():\n    import torch"),
        ("tuner.trial", "from rich.table import Table"),
        ("report.tables", "from rich.table import Table"),
        ("measure.steps", "import scipy.stats"),
        ("commands.doctor", "import pynvml"),
    ],
)
def test_a_library_in_foreign_hands_is_seen(tmp_path: Path, module: str, text: str) -> None:
    assert len(owner_faults(all_imports(bad_tree(tmp_path, {module: text})))) == 1


def test_a_circle_of_imports_is_seen(tmp_path: Path) -> None:
    circle = {"a": "from gpurun import b", "b": "import gpurun.c", "c": "from gpurun.a import f"}
    sources = bad_tree(tmp_path, circle)
    assert cycles(all_imports(sources)) == ["gpurun.a → gpurun.b → gpurun.c → gpurun.a"]


def test_an_import_on_demand_closes_a_circle_too(tmp_path: Path) -> None:
    later = "def f():\n    import gpurun.a\n    return gpurun.a"
    sources = bad_tree(tmp_path, {"a": "import gpurun.b", "b": later})
    assert cycles(all_imports(sources)) == ["gpurun.a → gpurun.b → gpurun.a"]


def test_an_overlong_and_an_undocumented_file_are_seen(tmp_path: Path) -> None:
    long = '"""Long."""\n' + "x = 1\n" * MOST_LINES
    sources = bad_tree(tmp_path, {"long": long, "bare": "x = 1\n"})
    assert len(shape_faults(sources)) == 2


def test_a_heavy_import_is_seen_in_the_list_of_import_times() -> None:
    output = "import time:  100 |  200 |   gpurun.cli\nimport time: 9 | 9 |     rich.table\n"
    assert heavy_imports(output) == {"rich"}
