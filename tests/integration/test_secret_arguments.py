"""Secrets among the script's arguments: the script gets them, and nothing of ours holds them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.integration.tunings import training
from tests.repositories import commit, git

pytestmark = pytest.mark.forked

SECRET = "s3cr3t"
ARGUMENTS = (
    f"--api-key={SECRET}1",
    "--db-password",
    f"{SECRET}2",
    f"--url=https://me:{SECRET}3@host.org/x?token={SECRET}4",
    "--cfg",
    f'{{"token": "{SECRET}5=="}}',
    "--api-keys",
    f"{SECRET}6",
    f"{SECRET}7",
    "--pass",
    f"-{SECRET}8",
)
ONCE = ("--launches", "1", "--steps", "5")
PARSER = """
import argparse
parser = argparse.ArgumentParser()
for name in ("--api-key", "--db-password", "--url", "--cfg"):
    parser.add_argument(name)
parser.add_argument("--api-keys", nargs="+")
options, _ = parser.parse_known_args()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PARSER + training(60))
    failing = "raise ValueError(f'--api-key={options.api_key} {options.db_password}, {options}')"
    (tmp_path / "fails.py").write_text(f"{PARSER}print(options)\nimport torch\n{failing}\n")
    return tmp_path


def assert_hidden(folder: Path, done: subprocess.CompletedProcess[bytes]) -> None:
    ours = [line for line in done.stderr.decode().splitlines() if line.startswith("gpurun:")]
    assert SECRET not in "\n".join(ours)
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py"]
    assert files
    for path in files:
        if path.name == "output.log":  # all that the script prints
            assert path.stat().st_mode & 0o077 == 0
        else:
            text = path.read_bytes()
            assert SECRET.encode() not in text, path
            if b"***" in text:
                assert path.stat().st_mode & 0o077 == 0, path


def test_a_run_keeps_no_secret(folder: Path, gpurun: Gpurun) -> None:
    done = gpurun("--json", "run.json", "train.py", *ARGUMENTS)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads((folder / "run.json").read_text())["command"][1] == "--api-key=***"
    for words in (("report", "--markdown", "run.md"), ("monitor", "--json", "state.json")):
        assert gpurun(*words).returncode == 0
    assert_hidden(folder, done)


@pytest.mark.parametrize(
    "words", [(), ("--nproc-per-node", "1"), ("--optimize", "--tune-only", "--json", "t.json")]
)
def test_a_script_that_fails_with_a_secret_keeps_none(
    words: tuple[str, ...], folder: Path, gpurun: Gpurun
) -> None:
    done = gpurun(*words, "fails.py", *ARGUMENTS)
    assert done.returncode in (1, 5)
    assert f"--api-key={SECRET}1".encode() in done.stderr  # the script's own traceback
    assert_hidden(folder, done)


def test_a_tuning_and_a_benchmark_keep_no_secret(folder: Path, gpurun: Gpurun) -> None:
    tuned = gpurun("--optimize", "--dry-run", "--json", "t.json", "train.py", *ARGUMENTS)
    assert tuned.returncode == 0, tuned.stderr.decode()
    fingerprint = json.loads((folder / "t.json").read_text())["fingerprint"]
    assert len(fingerprint["secrets_sha256"]) == 4
    measured = gpurun("bench", *ONCE, "--json", "b.json", "train.py", *ARGUMENTS)
    assert measured.returncode == 0, measured.stderr.decode()
    for done in (tuned, measured, gpurun("bench", "history", "--json", "h.json")):
        assert_hidden(folder, done)


def test_a_secret_before_the_script_is_not_repeated(folder: Path, gpurun: Gpurun) -> None:
    done = gpurun(f"--api-key={SECRET}", "train.py")
    assert done.returncode == 2
    assert "unknown flag --api-key=***" in done.stderr.decode()
    assert SECRET not in done.stderr.decode()


def test_two_secrets_are_two_workloads(folder: Path, gpurun: Gpurun) -> None:
    digests = []
    for secret in (f"{SECRET}1", f"{SECRET}2"):
        done = gpurun("bench", *ONCE, "--json", "b.json", "train.py", "--api-key", secret)
        assert done.returncode == 0, done.stderr.decode()
        record = json.loads((folder / "b.json").read_text())
        assert record["args"] == ["--api-key", "***"]
        digests.append(record["secrets_sha256"])
    assert len(digests[0]) == 4
    assert digests[0] != digests[1]


def test_a_secret_in_a_setup_command_is_told_nowhere(folder: Path, gpurun: Gpurun) -> None:
    setup = f"echo {SECRET}!; false --token {SECRET} https://u:{SECRET}@host.org/simple"
    (folder / "gpurun.toml").write_text(f'[bench]\nscript = "train.py"\nsetup = "{setup}"\n')
    git(folder, "init", "-q")
    for message in ("one", "two"):
        commit(folder, {"train.py": f"# {message}\n{training(10)}"}, message)
    done = gpurun("bench", "--compare", "HEAD~1", "--json", "c.json", "--markdown", "c.md")
    assert "setup failed on the baseline side" in done.stderr.decode()
    written = [(folder / name).read_text() for name in ("c.json", "c.md")]
    assert SECRET not in "".join([*written, done.stderr.decode()])
