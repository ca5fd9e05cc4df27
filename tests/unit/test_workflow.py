"""What pipelines copy is valid where it goes, and its shell does what the docs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpurun.report.comparison_text import MARKER
from tests.conftest import REPOSITORY
from tests.repositories import commit, new_repository

WORKFLOW = REPOSITORY / ".github" / "workflows" / "performance-benchmark.yml"


DOCS = REPOSITORY / "docs" / "BENCHMARKING.md"


def workflow() -> Any:
    return YAML(typ="safe").load(WORKFLOW)


def shell_of(job: str, name: str) -> str:
    """What a step runs."""
    (step,) = [s for s in workflow()["jobs"][job]["steps"] if s.get("name") == name]
    return str(step["run"])


def run(shell: str, folder: Path, programs: dict[str, str], **variables: str) -> tuple[int, str]:
    """Run a step's shell as GitHub does, with programs of ours; the exit code and what it said."""
    bin_folder = folder.parent / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (bin_folder / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", shell],
        cwd=folder,
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def snippet(language: str, title: str) -> str:
    """A block of the docs."""
    section = DOCS.read_text().split(f"\n### {title}\n")[1]
    return section.split(f"```{language}\n")[1].split("```")[0]


def test_both_are_pipelines_by_the_published_schemas(tmp_path: Path) -> None:
    gitlab = tmp_path / ".gitlab-ci.yml"
    gitlab.write_text(snippet("yaml", "GitLab"))
    for schema, file in (("vendor.github-workflows", WORKFLOW), ("vendor.gitlab-ci", gitlab)):
        words = ["-m", "check_jsonschema", "--builtin-schema", schema, file]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        file = tmp_path / "broken.yml"
        file.write_text("on: push\njobs: []\nstages: 3\n")
        done = subprocess.run([sys.executable, *words[:-1], file], capture_output=True, check=False)
        assert done.returncode == 1


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (1, 1), (3, 0), (5, 5)])
def test_the_plain_recipe_tells_a_regression_from_a_broken_benchmark(
    code: int, exit_code: int, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    programs = {"git": "exit 0", "gpurun": f"exit {code}"}
    found, said = run(snippet("bash", "Any other"), folder, programs)
    assert found == exit_code
    assert ("slower than main" in said) is (code == 1)


def test_only_the_job_that_runs_none_of_the_code_may_write() -> None:
    found = workflow()
    assert found["permissions"] == {"contents": "read"}
    assert "permissions" not in found["jobs"]["benchmark"]
    assert found["jobs"]["comment"]["permissions"] == {"pull-requests": "write"}
    assert not any("checkout" in step.get("uses", "") for step in found["jobs"]["comment"]["steps"])
    checkout = found["jobs"]["benchmark"]["steps"][0]["with"]
    assert (checkout["fetch-depth"], checkout["persist-credentials"]) == (0, False)


@pytest.mark.parametrize(
    ("code", "inconclusive", "exit_code"),
    [
        (0, "warn", 0),
        (1, "warn", 1),
        (3, "warn", 0),
        (3, "fail", 3),
        (4, "warn", 4),
        (5, "warn", 5),
    ],
)
def test_the_exit_code_alone_is_the_verdict(
    code: int, inconclusive: str, exit_code: int, tmp_path: Path
) -> None:
    folder = new_repository(tmp_path / "project")
    head = commit(folder, {"train.py": ""})
    variables = {
        "RUNNER_TEMP": str(tmp_path),
        "INCONCLUSIVE": inconclusive,
        "FLAGS": "--budget 45m",
        "BENCHMARK": "train.py --epochs 1",
    }
    bench = {"gpurun": f'echo "$@"; exit {code}'}
    shell = shell_of("benchmark", "Compare")
    found, said = run(shell, folder, bench, **variables, REF=head)
    assert found == exit_code
    assert f"bench --compare {head} " in said
    assert "--budget 45m train.py --epochs 1" in said
    assert ("::warning" in said) is ((code, exit_code) == (3, 0))
    _, said = run(shell, folder, bench, **variables, REF="0" * 40)  # a branch's first push
    assert "bench --compare HEAD " in said


@pytest.mark.parametrize(
    ("earlier", "asked"),
    [
        ("", "api list --field body=@found/comparison.md"),
        ("7\n9", "api --method PATCH one/9 --field body=@found/comparison.md"),
    ],
)
def test_there_is_one_comment_however_often_it_runs(
    earlier: str, asked: str, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    shell = shell_of("comment", "Write one comment, the same one again")
    assert f'startswith("{MARKER}")' in shell
    calls = tmp_path / "calls"
    answer = f'echo "$@" >> "{calls}"; [ "$2" != --paginate ] || printf %s "$EARLIER"'
    places = {"COMMENTS": "list", "ONE": "one", "EARLIER": earlier}
    assert run(shell, folder, {"gh": answer}, **places)[0] == 0
    assert not calls.exists()  # nothing was compared
    (folder / "found").mkdir()
    (folder / "found" / "comparison.md").write_text(f"{MARKER}\n### PASS\n")
    assert run(shell, folder, {"gh": answer}, **places)[0] == 0
    assert calls.read_text().splitlines()[-1] == asked
