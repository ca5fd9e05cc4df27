"""Whole tunings where user namespaces are not permitted: under Landlock, on a copy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.isolation_launcher import tree, without_namespaces
from tests.integration.tunings import configure, lines, report_of, run_folder, training

pytestmark = pytest.mark.slow

WRITES = """
import os, shutil, subprocess
from pathlib import Path
project, outside = Path({project!r}), Path({outside!r})
for name, attempt in {{
    "create": lambda: (project / "new.txt").write_text("x"),
    "write": lambda: (project / "kept.txt").write_text("x"),
    "truncate": lambda: os.truncate(outside / "kept.txt", 0),
    "remove": lambda: (outside / "kept.txt").unlink(),
    "rename": lambda: (project / "kept.txt").rename(project / "other.txt"),
    "folder": lambda: (Path.home() / "folder").mkdir(),
    "shell": lambda: subprocess.run(["sh", "-c", "echo > {outside}/sh"], check=True),
}}.items():
    try: attempt()
    except (OSError, subprocess.CalledProcessError): print("refused", name)
Path("kept.txt").write_text("changed")
shutil.rmtree("checkpoints"); os.makedirs("outputs", exist_ok=True)
Path(__file__).with_name("beside.txt").write_text("x")
Path(os.environ["XDG_CACHE_HOME"], "downloaded").write_text("x")
print("redirected", Path("kept.txt").read_text(), Path("beside.txt").exists())
"""
ATTEMPTS = ("create", "write", "truncate", "remove", "rename", "folder", "shell")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A working folder among others that the tests may fill."""
    for name in ("project/checkpoints", "outside", "home/.cache"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("project/kept.txt", "outside/kept.txt", "project/checkpoints/best.pt"):
        (tmp_path / name).write_text("kept")
    return tmp_path / "project"


def tune(project: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """`gpurun --optimize --tune-only train.py` where no namespace can be made."""
    words = ("-m", "gpurun", "--optimize", "--tune-only", "train.py")
    at_home = {**environment, "HOME": str(project.parent / "home")}
    return without_namespaces(project, at_home, *words, timeout=800)


def contents(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder but our records, byte for byte."""
    ours = str(folder / "project" / ".gpurun")
    project = str(folder / "project" / ".")  # gets its time from our folder in it
    return {k: v for k, v in tree(folder).items() if k != project and not k.startswith(ours)}


def test_a_tuning_under_landlock_reaches_its_proof_and_changes_nothing(
    project: Path, clean_environment: dict[str, str]
) -> None:
    outside = project.parent / "outside"
    writes = WRITES.format(project=str(project), outside=str(outside))
    (project / "train.py").write_text(writes + training(60, sleep=0.008, pause=0.01))
    configure(project, "allow = ['pipeline']\nmax_trials = 3\nbudget = '10m'")
    before = contents(project.parent)

    done = tune(project, clean_environment)

    assert contents(project.parent) == before
    said, report = lines(done), report_of(project)
    assert done.returncode == 0, done.stderr.decode()
    assert said[-1].startswith("verdict=faster exit=0")
    assert report["chosen"]["knobs"]["loader_workers"] >= 1
    assert report["isolation"] == "landlock"
    # the loader is seen to be the script's own, though it is built in a copy of the script
    assert not any(line.startswith("batch size: not tried") for line in report["decisions"])
    assert "isolation: landlock" in said[0]
    assert any("user namespaces are not permitted" in line for line in said)
    folder = run_folder(project / ".gpurun")
    assert len(report["trials"]) > 4
    for trial in report["trials"]:
        assert trial["status"] in ("stopped", "completed")
        printed = (folder / trial["run_dir"] / "output.log").read_text().split("\n")
        words = [line.split() for line in printed]
        assert tuple(w[1] for w in words if w[:1] == ["refused"]) == ATTEMPTS
        assert ["redirected", "changed", "True"] in words


def test_a_change_that_landlock_cannot_forbid_is_told_by_its_path(
    project: Path, clean_environment: dict[str, str]
) -> None:
    source = f"import os\nos.chmod({str(project / 'kept.txt')!r}, 0o600)\n" + training(10)
    (project / "train.py").write_text(source)
    done = tune(project, clean_environment)
    assert done.returncode == 2
    (told,) = [line for line in lines(done) if "changed while tuning" in line]
    assert "by another program or by a trial's chmod" in told
    assert "kept.txt (mode)" in told
