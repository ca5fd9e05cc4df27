"""The rules of docs/ARCHITECTURE.md, read from the imports; each checker is shown to bite."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MOST_LINES = 450

WIRE = ("gpurun.records", "gpurun.errors", "gpurun.numa")
KNOB_TOP = (*WIRE, "gpurun.knobs")
RUNTIME = ("gpurun.runtime", "gpurun.knobs", *WIRE)

OWNERS = {
    "torch": ("gpurun.launch.elastic_agent", "gpurun.launch.rendezvous"),
    "rich": ("gpurun.report",),
    "scipy": ("gpurun.stats",),
    "matplotlib": ("gpurun.report.plots",),
    "sqlalchemy": ("gpurun.bench.store",),
    "psycopg": ("gpurun.bench.store.postgres",),
    "pynvml": ("gpurun.measure.nvml",),
    "psutil": ("gpurun.measure.host_sampler", "gpurun.launch"),
}
"""Who may import each heavy library in the launcher; knobs and runtime live beside torch anyway."""

BELOW = {"gpurun.trials": ("gpurun.tuner", "gpurun.bench", "gpurun.scaling", "gpurun.commands")}
"""Packages, and what stands above them: they must not import it, not even on demand."""

STAIRS = ("core", "observe", "trial", "profile", "ddp", "probe", "boot", "bootstrap")
"""The rooms of `gpurun.runtime` from the lowest: a room imports itself and those before it."""

HEAVY = (
    "torch", "rich", "scipy", "matplotlib", "numpy", "psutil", "pynvml", "sqlalchemy", "psycopg",
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

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def read_package(root: Path) -> list[Source]:
    sources = []
    for path in sorted((root / "gpurun").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources.append(Source(name, path.read_text(encoding="utf-8")))
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
        lazy_library = library in ("torch", "numpy") and not found.top
        users_own = library == "sitecustomize" and within(found.of, ("gpurun.runtime.bootstrap",))
        return standard or lazy_library or users_own or within(found.what, RUNTIME)
    if within(found.of, ("gpurun.knobs",)):
        if found.top:
            return standard or within(found.what, KNOB_TOP)
        return not ours or within(found.what, RUNTIME)
    return not within(found.what, ("gpurun.runtime",))


def floor_faults(imports: list[Import]) -> list[str]:
    """Imports that go up."""
    return [
        f"{i.of} imports {i.what}, which stands above it"
        for i in imports
        for floor, above in BELOW.items()
        if within(i.of, (floor,)) and within(i.what, above)
    ]


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
    """Cycles among imports at module level, each as the path that closes it."""
    graph: dict[str, set[str]] = {}
    for i in imports:
        if i.top and i.what != i.of and within(i.what, ("gpurun",)):
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


def test_imports_go_down(package: list[Source]) -> None:
    assert floor_faults(all_imports(package)) == []
    up = Import("gpurun.trials.failure_cause", "gpurun.tuner.trial_length", top=False)
    assert len(floor_faults([up])) == 1


def test_rooms_of_the_runtime_import_one_way(package: list[Source]) -> None:
    assert stair_faults(all_imports(package)) == []
    up = Import("gpurun.runtime.observe.loaders", "gpurun.runtime.trial.trial_run", top=False)
    assert len(stair_faults([up])) == 1
    rooms = {
        source.name.split(".")[2]
        for source in package
        if source.name.count(".") > 1 and within(source.name, ("gpurun.runtime",))
    }
    assert rooms == set(STAIRS)


def test_zones_are_kept(package: list[Source]) -> None:
    assert zone_faults(all_imports(package)) == []


def test_each_heavy_library_has_one_owner(package: list[Source]) -> None:
    assert owner_faults(all_imports(package)) == []


def test_no_import_goes_in_a_circle(package: list[Source]) -> None:
    assert cycles(all_imports(package)) == []


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
        ("runtime.steps", "import torch"),
        ("runtime.steps", "def f():\n    import psutil"),
        ("runtime.steps", "from gpurun.tuner import trial"),
        ("runtime.steps", "try:\n    import rich\nexcept ImportError:\n    pass"),
        ("records.spec", "from gpurun.arguments.gpurun_toml import Config"),
        ("records.spec", "def f():\n    import torch"),
        ("knobs.compile", "import torch"),
        ("knobs.compile", "from gpurun.runtime.observe.step_clock import Clock"),
        ("knobs.compile", "def f():\n    from gpurun.tuner import trial"),
    ],
)
def test_a_breach_of_zones_is_seen(tmp_path: Path, module: str, text: str) -> None:
    empty = dict.fromkeys(("runtime.__init__", "runtime.steps", "tuner.trial"), "")
    sources = bad_tree(tmp_path, {**empty, module: text})
    assert len(zone_faults(all_imports(sources))) == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("runtime.steps", "import os\ndef f():\n    import torch"),
        ("knobs.compile", "from gpurun.knobs.api import Knob\ndef f():\n    import torch"),
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


def test_an_import_on_demand_closes_no_circle(tmp_path: Path) -> None:
    later = "def f():\n    import gpurun.a\n    return gpurun.a"
    sources = bad_tree(tmp_path, {"a": "import gpurun.b", "b": later})
    assert cycles(all_imports(sources)) == []


def test_an_overlong_and_an_undocumented_file_are_seen(tmp_path: Path) -> None:
    long = '"""Long."""\n' + "x = 1\n" * MOST_LINES
    sources = bad_tree(tmp_path, {"long": long, "bare": "x = 1\n"})
    assert len(shape_faults(sources)) == 2


def test_a_heavy_import_is_seen_in_the_list_of_import_times() -> None:
    output = "import time:  100 |  200 |   gpurun.cli\nimport time: 9 | 9 |     rich.table\n"
    assert heavy_imports(output) == {"rich"}
