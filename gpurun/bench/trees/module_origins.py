"""Did each side run its own tree, unchanged? The records of its processes' modules answer this.

A comparison in which both sides import one tree finds no difference, whatever was changed. Causes
are an editable install (`pip install -e .` points at one tree), a copy (`pip install .`), and an
absolute path in a script or in PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpurun.bench.trees.git import is_in_repository, source_files
from gpurun.bench.trees.installed_packages import copies, leads_to
from gpurun.bench.trees.prepared_sides import Side, Sides
from gpurun.errors import ExitCode, GpurunError
from gpurun.measure.fingerprint import INSTALLED
from gpurun.records.events import OriginsEvent


def check_origins(sides: Sides, side: Side, events: Iterable[OriginsEvent]) -> None:
    """`GpurunError` (exit code 5) unless a launch of `side` is proven to have run its own tree.

    `events`: those of all its processes. Read while both trees are there: links are followed.
    """
    told = list(events)
    for event in told:
        for module, file in event.foreign:
            trees = (sides.current.tree, sides.baseline.tree, sides.users)
            tree = next((one for one in trees if one.holds(file)), None)
            whose = "the baseline's tree" if tree == sides.baseline.tree else "the current tree"
            raise _wrong(side, module, file, whose, _cure(file, event.search_path))
        _check_copies(sides, side, event)
    if not any(event.complete for event in told):
        raise GpurunError(
            f"the {side.name} side has no record of its imports: nothing proves that it ran its "
            "own tree",
            "see its output: a script that is killed, or python -I in a child, leaves no record",
            ExitCode.BENCHMARK_FAILED,
        )


def _check_copies(sides: Sides, side: Side, event: OriginsEvent) -> None:
    """A copy is the side's own only if its setup command made it from the side's tree."""
    places, environment = _packages(event.search_path), side.environment
    for tree in dict.fromkeys((sides.baseline.tree, sides.current.tree, sides.users)):
        copied = dict(copies(places, tree)) if event.installed else {}
        for module, file in event.installed:
            metadata = copied.get(Path(file))
            if metadata is None or (
                environment is not None
                and tree == side.tree
                and metadata.is_relative_to(environment)
            ):
                continue
            whose = f"an installed copy ({metadata})"
            raise _wrong(side, module, file, whose, f"{metadata} (a copy) leads there")


def _wrong(side: Side, module: str, file: str, whose: str, cure: str) -> GpurunError:
    what = f"the {side.name} side loaded {module or 'a script'} from {file}, which is {whose}, not "
    if cure.endswith("there"):
        code = side.tree.root / ("src" if (side.tree.root / "src").is_dir() else "")
        cure += (
            ': add setup = "pip install -e ." to [bench], which installs each side into an '
            "environment of its own, or "
            f'env = {{ PYTHONPATH = "{os.path.relpath(code, side.folder)}" }}'
        )
    return GpurunError(f"{what}its own {side.tree.root}", cure, ExitCode.BENCHMARK_FAILED)


def _cure(file: str, search_path: Sequence[str]) -> str:
    """What leads python to a file of another tree, and what to do."""
    files = (file for place in _packages(search_path) for file in sorted(place.glob("*.pth")))
    for path_file in files:
        lead = leads_to(path_file, lambda path: Path(file).is_relative_to(os.path.realpath(path)))
        if lead is not None:
            return f"{lead} (an editable install) leads there"
    entries = (one for one in search_path if Path(one).name not in INSTALLED)
    entry = next((one for one in entries if Path(file).is_relative_to(one)), file)
    return (
        f"an absolute path, PYTHONPATH or a link leads to {entry}: have it start from the script's "
        "own place, as in Path(__file__).parent"
    )


def _packages(search_path: Sequence[str]) -> list[Path]:
    """The folders of packages among the places where a process looks for modules."""
    return [path for path in map(Path, dict.fromkeys(search_path)) if path.name in INSTALLED]


class EditedFiles:
    """The files of some trees as they are now: sources that git knows, and modules once loaded. In
    a folder that is in no repository, as two settings of a script may be, these alone.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(dict.fromkeys(roots))
        self._versions: dict[str, object] = {}
        self._add(self._sources())

    def loaded(self, events: Iterable[OriginsEvent]) -> None:
        """Look at these modules of a tree too, compiled ones that git ignores among them."""
        self._add(file for event in events for _, file in event.own)

    def refuse(self) -> None:
        """`GpurunError` (exit code 5) if a file is not as it was when it was first looked at, or if
        there is a new module."""
        edits = {file: "changed" for file, v in self._versions.items() if _version(file) != v}
        new = (file for file in self._sources() if file.endswith(".py"))
        edits |= {file: "added" for file in new if file not in self._versions}
        for file, how in edits.items():
            raise GpurunError(
                f"{file} was {how} while it was compared: its launches ran different code",
                "compare again, and leave both trees as they are until it is over",
                ExitCode.BENCHMARK_FAILED,
            )

    def _sources(self) -> Iterator[str]:
        for root in filter(is_in_repository, self._roots):
            yield from (str(root / name) for name in source_files(root))

    def _add(self, files: Iterable[str]) -> None:
        self._versions |= {file: _version(file) for file in files if file not in self._versions}


def _version(file: str) -> object:
    """The content of a python file; of any other, what changes whenever it is written."""
    try:
        if file.endswith(".py"):
            return hashlib.blake2b(Path(file).read_bytes()).digest()
        status = os.lstat(file)
        return status.st_mtime_ns, status.st_size, status.st_ino
    except OSError:
        return None
