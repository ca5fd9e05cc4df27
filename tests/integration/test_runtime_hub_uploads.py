"""A trial uploads nothing to the hub, whichever door the script uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpurun.launch.child_environment import child_environment
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec, StopRule, TrialSpec

HUB = """
class HfApi:
    def create_repo(self, repo_id, **more):
        print("REAL UPLOAD")
        return self

    def upload_file(self, *, path_or_fileobj, path_in_repo, repo_id):
        print("REAL UPLOAD")

    def whoami(self):
        return "me"

api = HfApi()
create_repo = api.create_repo
upload_file = api.upload_file
"""
SCRIPT = """
from huggingface_hub.hf_api import HfApi, create_repo, upload_file
print(create_repo("me/model", exist_ok=True).repo_id)
print(HfApi().create_repo(repo_id="me/other").repo_id)
print(repr(upload_file(path_or_fileobj=b"", path_in_repo="x", repo_id="me/model").commit_url))
print(HfApi().whoami())
"""


def test_hub_uploads_do_nothing_in_a_trial(tmp_path: Path) -> None:
    package = tmp_path / "huggingface_hub"  # of the real client's shape; uploading needs no network
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "hf_api.py").write_text(HUB)
    (tmp_path / "train.py").write_text(SCRIPT)
    stop = StopRule(min_steps=1, min_seconds=0, max_steps=1, warmup_steps=0, audit_steps=0)
    spec = RunSpec(str(tmp_path), os.getpid(), trial=TrialSpec(stop))
    (tmp_path / "spec.json").write_text(json.dumps(to_json(spec)))
    environment = child_environment(tmp_path / "spec.json", dict(os.environ))
    command = [sys.executable, "train.py"]
    output = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert output.splitlines() == ["me/model", "me/other", "''", "me"]
