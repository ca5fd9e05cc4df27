"""A trial uploads and logs nothing elsewhere, whichever door the script uses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gpurun.isolation.quiet_services import quiet_services
from gpurun.launch.launch_command import child_environment
from gpurun.measure.run_events import read_run
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec, StopRule, TrialSpec
from tests.conftest import Gpurun

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


WANDB = """
import os, socket
class Run:
    def __init__(self, sends): self.sends = sends
    def log(self, row): send(f"log {row}") if self.sends else None
def send(what):
    with socket.create_connection(("127.0.0.1", int(os.environ["SINK"]))) as sink:
        sink.sendall(f"{what}\\n".encode())
def init(project=None, config=None, *, mode=None, settings=None):
    mode = mode or (settings or {}).get("mode") or os.environ.get("WANDB_MODE") or "online"
    if mode != "disabled": send("init")
    return Run(mode != "disabled")
def login(key=None, relogin=None):
    send(f"login {key}")
    return True
"""
MLFLOW = """
import os
import wandb
uri = None
def set_tracking_uri(to):
    global uri
    if hasattr(wandb, "broken"): raise ValueError
    uri = to
def log_metric(name, value):
    if (uri or os.environ["MLFLOW_TRACKING_URI"]).startswith("http"): wandb.send("metric")
class MlflowClient:
    def __init__(self, tracking_uri=None, registry_uri=None): self.uri = tracking_uri or uri
    def log(self): wandb.send("client") if self.uri.startswith("http") else None
"""
COMET = """
import wandb
class Experiment:
    def __init__(self, api_key=None, project_name=None, disabled=False):
        self.disabled = disabled
    def log_metric(self, *_): None if self.disabled else wandb.send("comet")
class ExistingExperiment(Experiment):
    def __init__(self, api_key=None, **kwargs): super().__init__(api_key, **kwargs)
def start(api_key=None, online=None):
    if online is not False: wandb.send("start")
def login(api_key=None): wandb.send("login")
"""
NEPTUNE = """
import os
import wandb
class Run:
    def __init__(self, with_id=None, mode=None):
        if (mode or os.environ["NEPTUNE_MODE"]) != "debug": wandb.send("neptune")
init_run = Run
def init_model(name=None, mode="async"):
    if mode != "debug": wandb.send("model")
"""
CLEARML = """
import wandb
class Task:
    offline = False
    @classmethod
    def set_offline(cls, offline_mode=False): cls.offline = bool(offline_mode)
    @classmethod
    def init(cls, project_name=None): None if cls.offline else wandb.send("clearml")
"""
LOGGERS = """
import os
os.environ.update(WANDB_MODE="online", NEPTUNE_MODE="async", MLFLOW_TRACKING_URI="http://team")
import wandb, mlflow, comet_ml, neptune, clearml
import huggingface_hub.hf_api as hub
wandb.login("key")
wandb.init("p", {"lr": 1}, mode="online").log({"loss": 1})
wandb.init(settings={"mode": "online"})
mlflow.log_metric("before", 1)
mlflow.set_tracking_uri("http://team")
mlflow.log_metric("loss", 1)
mlflow.MlflowClient("http://team").log()
comet_ml.login("key")
comet_ml.start("key")
comet_ml.Experiment("key", "p", False).log_metric("loss", 1)
comet_ml.ExistingExperiment("key").log_metric("loss", 1)
neptune.init_run(mode="async")
neptune.Run("id", "sync")
neptune.init_model("m", "sync")
clearml.Task.init("p")
clearml.Task.set_offline(False)
clearml.Task.init("p")
try:
    wandb.init(1, 2, 3, 4)
except TypeError as error:
    import traceback
    print("".join(traceback.format_exception(error)).count("gpurun"))
wandb.broken = True
class Bad:
    def __str__(self): raise ValueError
for call in (lambda: mlflow.set_tracking_uri(1), lambda: hub.create_repo(repo_id=Bad())):
    try:
        call()
    except (ValueError, AttributeError) as error:
        print("".join(traceback.format_exception(error)).count("gpurun"))
"""


def run_trial(folder: Path, packages: dict[str, str], script: str, **env: str) -> list[str]:
    """What a trial of the script prints beside packages of the real ones' shape."""
    for name, text in packages.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "train.py").write_text(script)
    stop = StopRule(min_steps=1, min_seconds=0, max_steps=1, warmup_steps=0, audit_steps=0)
    spec = RunSpec(str(folder), os.getpid(), trial=TrialSpec(stop))
    (folder / "spec.json").write_text(json.dumps(to_json(spec)))
    environment = child_environment(folder / "spec.json", {**quiet_services(os.environ), **env})
    command = [sys.executable, "train.py"]
    return subprocess.check_output(command, cwd=folder, env=environment, text=True).splitlines()


def test_hub_uploads_do_nothing_in_a_trial(tmp_path: Path) -> None:
    packages = {"huggingface_hub/__init__.py": "", "huggingface_hub/hf_api.py": HUB}
    assert run_trial(tmp_path, packages, SCRIPT) == ["me/model", "me/other", "''", "me"]


def test_a_logger_that_the_script_switches_on_sends_nothing_in_a_trial(tmp_path: Path) -> None:
    packages = {
        "wandb.py": WANDB, "mlflow.py": MLFLOW, "comet_ml.py": COMET, "neptune.py": NEPTUNE,
        "clearml.py": CLEARML, "huggingface_hub/__init__.py": "", "huggingface_hub/hf_api.py": HUB,
    }  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as sink:
        sink.settimeout(0.2)
        printed = run_trial(tmp_path, packages, LOGGERS, SINK=str(sink.getsockname()[1]))
        received = []
        with suppress(TimeoutError):
            while True:
                received.append(sink.accept()[0].recv(100))
    assert received == []
    assert printed == ["0"] * 3  # the script's own mistake is its own in the traceback


def test_connections_to_other_machines_are_counted_and_not_prevented(tmp_path: Path) -> None:
    script = """
import socket
for host in ("127.0.0.1", "198.51.100.1", "198.51.100.1", "::1"):
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as made:
        made.setblocking(False)
        print(type(made.connect_ex((host, 9))).__name__)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    asked.connect(("198.51.100.1", 9))
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    import traceback
    print("".join(traceback.format_exception(error)).count("gpurun"))
"""
    assert run_trial(tmp_path, {}, script) == ["int"] * 4 + ["0"]
    (log,) = read_run(tmp_path).processes
    assert [(t.trait, t.detail) for t in log.traits] == [("connected", "198.51.100.1:9")] * 2


def test_an_address_is_this_machines_by_what_the_kernel_says_and_not_by_how_it_begins(
    tmp_path: Path,
) -> None:
    script = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    try:
        asked.connect(("198.51.100.1", 9))
    except OSError:  # no network
        own = "127.0.0.1"
    else:
        own = asked.getsockname()[0]
for host in (own, "127.0.0.9", "localhost", "0.0.0.0", "::1", "::ffff:127.0.0.1", "::1f"):
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind, socket.SOCK_STREAM) as made:
        made.setblocking(False)
        made.connect_ex((host, 9))
"""
    run_trial(tmp_path, {}, script)
    (log,) = read_run(tmp_path).processes
    assert [(t.trait, t.detail) for t in log.traits] == [("connected", "::1f:9")]


@pytest.mark.forked
def test_a_tuning_tells_of_connections_in_one_line(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(
        "import socket, torch\n"
        "for host in ('198.51.100.1', '203.0.113.2'):\n"
        "    made = socket.socket()\n"
        "    made.setblocking(False)\n"
        "    made.connect_ex((host, 443))\n"
    )
    done = gpurun("--optimize", "--tune-only", "train.py")
    told = [line for line in done.stderr.decode().splitlines() if "other machines" in line]
    (line,) = told
    assert line.startswith(
        "gpurun: trials connected to other machines 2 times (198.51.100.1:443, 203.0.113.2:443)"
    )
