"""The two sides of a comparison, ready to be launched: each its tree, its python, its variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.trees.git import Repository, without_redirection
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.side_setup import activated, copy_needed, make_environment, run_setup
from gpurun.bench.trees.worktrees import WORKTREES, checked_out
from gpurun.errors import GpurunError
from gpurun.records.script_arguments import masked_text
from gpurun.records.spec import Trees
from gpurun.trials.applied_settings import AppliedSettings

BASELINE = "baseline"
CURRENT = "current"
ENVIRONMENT = "environment-"


@dataclass(frozen=True)
class Side:
    """One side: `name` is "baseline" or "current", or a commit's; `tree` its files.

    `folder`: where launches start. `python`: what they start with. `variables`: their whole
    environment. `environment`: the side's own python environment, None without a setup command.
    `applied`: the settings that it runs with. `planted_seconds`: added to each step on purpose.
    `trees`: those whose files its launches record, None for no record.
    """

    name: str
    commit: str
    tree: Tree
    folder: Path
    python: Path
    variables: Mapping[str, str]
    environment: Path | None = None
    applied: AppliedSettings | None = None
    planted_seconds: float = 0.0
    trees: Trees | None = None


@dataclass(frozen=True)
class Sides:
    """Both sides, and the user's tree, which is the current side unless that is a commit too.

    `notes`: what the user should know of them, a line each.
    """

    baseline: Side
    current: Side
    users: Tree
    notes: tuple[str, ...] = ()

    def slowed(self, name: str | None, seconds: float) -> Sides:
        """The same sides, of which the one of this name sleeps in each step; None: neither does."""

        def asleep(side: Side) -> Side:
            return replace(side, planted_seconds=seconds if side.name == name else 0.0)

        return replace(self, baseline=asleep(self.baseline), current=asleep(self.current))


@contextmanager
def prepared_sides(
    repository: Repository,
    commits: Mapping[str, str | None],
    home: Path,
    benchmark: Benchmark,
    logs: Path,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[Sides]:
    """The sides of two commits by name (None: the user's tree), set up; a single one is both.

    `home`: the folder of records; worktrees are made in it and removed at the end of the block.
    `logs`: the folder for the output of the setup commands. `tell` hears what takes its time.
    `GpurunError` where a side cannot be made, or its setup command fails.
    """
    root = repository.root.resolve()
    if not benchmark.folder.resolve().is_relative_to(root):
        raise GpurunError(
            f"{benchmark.folder} is not in the repository {root}",
            "keep gpurun.toml and the script in the repository that is compared",
        )
    users, made, places = Tree(root, (home.resolve() / WORKTREES,)), [], []
    notes: tuple[str, ...] = ()
    with ExitStack() as stack:
        for name, commit in commits.items():
            tree = users
            if commit is not None:
                top, lacking = stack.enter_context(checked_out(repository, commit, home))
                tree, notes = Tree(top), (*notes, *lacking)
                places.append(top.parent)
            commit = commit or repository.head()
            made.append(_made(name, commit, tree, users, places[0], benchmark))
        roots = dict.fromkeys(str(tree.root) for tree in (*(side.tree for side in made), users))
        sides = []
        for side in made:
            own = str(side.tree.root)
            others = tuple(one for one in roots if one != own)
            sides.append(replace(side, trees=Trees(own=own, others=others)))
        _set_up(sides, users, benchmark, logs, tell)
        yield Sides(sides[0], sides[-1], users, notes)


def _set_up(
    sides: Sequence[Side],
    users: Tree,
    benchmark: Benchmark,
    logs: Path,
    tell: Callable[[str], None],
) -> None:
    """Bring needed files and run the setup command, in the folder of the configuration."""
    base = (benchmark.base or benchmark.folder).resolve()
    source = base if base.is_relative_to(users.root) else benchmark.folder.resolve()
    for side in sides:
        if side.tree != users and benchmark.needed:
            target = _same_folder(side.tree, users, source)
            copy_needed(benchmark.needed, source, target, side.tree)
    for side in sides if benchmark.setup is not None else ():
        words = f"setup of the {side.name} side: {benchmark.setup}"
        tell(masked_text(words, (benchmark.setup or "").split()))
        folder = _same_folder(side.tree, users, source)
        variables = {**side.variables, "PWD": str(folder)}
        run_setup(benchmark.setup or "", side.name, folder, variables, logs)


def _same_folder(tree: Tree, users: Tree, folder: Path) -> Path:
    """The folder of `tree` that a folder of the user's tree stands for.

    It is made if the commit does not have it: its script then fails.
    """
    found = tree.root / folder.relative_to(users.root)
    if not tree.holds(found):
        raise GpurunError(
            f"{folder.relative_to(users.root)} of the other commit is a link to"
            f" {os.path.realpath(found)}, outside of its tree",
            "compare with a commit in which it is a folder",
        )
    found.mkdir(parents=True, exist_ok=True)
    return found


def _made(
    name: str, commit: str, tree: Tree, users: Tree, place: Path, benchmark: Benchmark
) -> Side:
    folder = _same_folder(tree, users, benchmark.folder.resolve())
    variables = _moved(without_redirection(os.environ), users, tree)
    variables |= {**benchmark.env, "PWD": str(folder)}
    python, environment = Path(sys.executable), None
    if benchmark.setup is not None:
        environment = place / f"{ENVIRONMENT}{name}"
        python = make_environment(environment, users)
        variables = activated(variables, environment)
    return Side(name, commit, tree, folder, python, variables, environment)


def _moved(variables: dict[str, str], users: Tree, tree: Tree) -> dict[str, str]:
    """The variables with a PYTHONPATH that names the user's tree naming the side's instead."""

    def moved(word: str) -> str:
        if not os.path.isabs(word) or not users.holds(word):
            return word
        same = tree.root / Path(os.path.realpath(word)).relative_to(users.root)
        return str(same) if same.is_dir() else word

    words = variables.get("PYTHONPATH", "").split(os.pathsep)
    return (
        {**variables, "PYTHONPATH": os.pathsep.join(map(moved, words))} if any(words) else variables
    )
