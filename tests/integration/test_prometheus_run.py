"""`--prometheus` of real runs, scraped over HTTP and read by the client's own parser."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NoReturn
from urllib.request import urlopen

import pytest

from gpurun.commands.live_outputs import LiveOutputs
from gpurun.records.monitor import MonitorReport
from gpurun.report.live import metrics_server
from gpurun.report.live.metrics_server import MOST_CONNECTIONS
from tests.conftest import Gpurun
from tests.integration.launched import start, wait_for

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

TRAIN = """
import os, pathlib, sys, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
loader = torch.utils.data.DataLoader(data, batch_size=16)
while not pathlib.Path("stop").exists():
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.005)
print("trained")
"""
Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(url: str) -> Samples:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def metrics_url(launcher: subprocess.Popen[bytes]) -> str:
    assert launcher.stderr is not None
    line = launcher.stderr.readline().decode()
    found = re.fullmatch(r"gpurun: metrics: (http://\S+/metrics)\n", line)
    assert found, line
    return found[1]


@contextmanager
def launched(
    folder: Path, environment: dict[str, str], *words: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A training under `--prometheus`, and the address of its metrics; stopped at the end."""
    launcher = start(folder, environment, *words)
    try:
        yield launcher, metrics_url(launcher)
        (folder / "stop").touch()
        out, err = launcher.communicate(timeout=120)
        assert launcher.returncode == 0, err.decode()
        assert b"trained" in out
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()


def has_ipv6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as here:
            here.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_run_serves_its_steps(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    name = 'tr"ain\\ {x="1"}.py'
    (tmp_path / name).write_text(TRAIN)
    with launched(tmp_path, clean_environment, "--prometheus", "0", name) as (launcher, url):
        assert url.startswith("http://127.0.0.1:")
        first = scrape(url)  # waits until the script has started
        assert first["training_steps"] == []
        assert wait_for(lambda: bool(scrape(url)["training_samples_per_second"]))
        seen = scrape(url)
        ((labels, steps),) = seen["training_steps"]
        (run,) = (tmp_path / ".gpurun" / "runs").iterdir()
        assert labels == {"run": run.name, "script": name, "rank": "0"}
        assert wait_for(lambda: scrape(url)["training_steps"][0][1] > steps)
        ((_, seconds),) = seen["training_step_time_seconds"]
        ((_, rate),) = seen["training_samples_per_second"]
        assert rate * seconds == pytest.approx(16)
        assert seconds > 0.005
        assert seen["training_learning_rate"][0][1] == 0.25
        assert abs(seen["training_last_step_timestamp_seconds"][0][1] - time.time()) < 60
        assert wait_for(lambda: bool(scrape(url)["training_loss"]))
        modules = subprocess.run(
            ["grep", "-c", "libtorch", f"/proc/{launcher.pid}/maps"], capture_output=True, text=True
        )
        assert modules.stdout.strip() == "0"


@pytest.mark.slow  # quick twin: the ranks of test_tensorboard_run.py
def test_ranks_have_series_of_their_own(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--nproc-per-node=2", "--prometheus=0", "train.py")
    environment = {**clean_environment, "OMP_NUM_THREADS": "1"}
    with launched(tmp_path, environment, *words) as (_, url):
        assert wait_for(lambda: len(scrape(url)["training_steps"]) == 2)
        assert [labels["rank"] for labels, _ in scrape(url)["training_steps"]] == ["0", "1"]


@pytest.mark.slow  # quick twin: test_a_run_serves_its_steps
def test_two_hundred_scrapes_a_second_all_answer(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    seconds, clients, rate = 4, 8, 200
    failed: list[Exception] = []
    answered = []

    def client(url: str, begin: float, number: int) -> None:
        for request in range(seconds * rate // clients):
            due = begin + (request * clients + number) / rate
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                answered.append(len(scrape(url)["training_steps"]))
            except Exception as error:
                failed.append(error)

    with launched(tmp_path, clean_environment, "--prometheus", "0", "train.py") as (_, url):
        assert wait_for(lambda: bool(scrape(url)["training_loss"]))
        begin = time.monotonic()
        threads = [threading.Thread(target=client, args=(url, begin, n)) for n in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
    assert answered == [1] * (seconds * rate)


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_clients_that_never_finish_their_request_take_nothing_from_scrapes_and_the_record(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    with (
        ExitStack() as held,
        launched(tmp_path, clean_environment, "--prometheus", "0", "train.py") as (launcher, url),
    ):
        assert wait_for(lambda: bool(scrape(url)["training_loss"]))
        resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, (100, 100))
        for _ in range(200):
            held.enter_context(connected(url)).sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        for _ in range(5):
            assert scrape(url)["training_loss"]
        assert len(os.listdir(f"/proc/{launcher.pid}/task")) <= 2 + MOST_CONNECTIONS + 1
    (result,) = tmp_path.glob(".gpurun/runs/*/result.json")
    assert json.loads(result.read_text())["steps"] > 0


def test_a_request_that_comes_byte_by_byte_ends_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_SECONDS", 1)
    server = metrics_server.MetricsServer(("127.0.0.1", 0))
    server.start(lambda: MonitorReport("ok", None, (), ()))

    def refused() -> bool:
        try:
            client.sendall(b"a")
        except ConnectionError:
            return True
        time.sleep(0.1)
        return False

    with closing(server), connected(server.url) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert wait_for(refused, 30)


def test_the_end_of_a_run_leaves_no_thread_of_a_client() -> None:
    before = threading.active_count()
    server = metrics_server.MetricsServer(("127.0.0.1", 0))
    server.start(lambda: MonitorReport("ok", None, (), ()))
    with connected(server.url) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert wait_for(lambda: threading.active_count() == before + 2)
        server.close()
        assert wait_for(lambda: threading.active_count() == before, 5)


def test_head_answers_what_get_does_without_the_text() -> None:
    server = metrics_server.MetricsServer(("127.0.0.1", 0))
    server.start(lambda: MonitorReport("ok", None, (), ()))
    with closing(server):
        request = urllib.request.Request(server.url, method="HEAD")
        with urlopen(request, timeout=30) as head, urlopen(server.url) as whole:
            assert (head.status, head.read()) == (200, b"")
            assert head.headers["Content-Type"] == whole.headers["Content-Type"]


@pytest.mark.parametrize("words", [[], ["--optimize"], ["monitor"]], ids=str)
def test_a_taken_port_is_one_line_before_anything_starts(
    words: list[str], tmp_path: Path, in_process: Gpurun
) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    script = [] if words == ["monitor"] else ["train.py"]
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = in_process(*words, "--prometheus", str(port), *script)
    assert done.returncode == 2
    lines = done.stderr.decode().splitlines()
    assert lines[0] == f"gpurun: --prometheus: port {port} of 127.0.0.1 cannot be used: {IN_USE}"
    assert len(lines) == 3
    assert not (tmp_path / "started").exists()
    assert not list(tmp_path.glob(".gpurun/runs/*"))


IN_USE = os.strerror(98)


def test_only_a_named_address_leaves_loopback(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 loopback")
    (tmp_path / "train.py").write_text(TRAIN)
    with launched(tmp_path, clean_environment, "--prometheus=[::1]:0", "train.py") as (_, url):
        assert url.startswith("http://[::1]:")
        assert "training_steps" in scrape(url)


@pytest.mark.parametrize("words", [[], ["monitor"]], ids=str)
def test_without_the_client_the_flag_is_refused(
    words: list[str], tmp_path: Path, in_process: Gpurun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpurun.report.live.find_spec", lambda name: None)
    (tmp_path / "train.py").write_text("open('started', 'w')")
    script = [] if words == ["monitor"] else ["train.py"]
    done = in_process(*words, "--prometheus", "0", *script)
    assert done.returncode == 2
    assert b"needs the package prometheus_client" in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_run_that_cannot_be_recorded_goes_on(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    (tmp_path / "file").touch()
    done = gpurun("--prometheus", "0", "--out", "file", "train.py")
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert b"without a record there are no figures" in done.stderr


def test_the_monitor_serves_trainings_of_its_folder(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    with launched(tmp_path, clean_environment, "--prometheus", "0", "train.py") as (_, url):
        assert wait_for(lambda: bool(scrape(url)["training_steps"]))
        monitor = start(tmp_path, clean_environment, "monitor", "--prometheus", "0")
        try:
            beside = metrics_url(monitor)
            assert scrape(beside)["training_steps"][0][0] == scrape(url)["training_steps"][0][0]
        finally:
            monitor.terminate()
            _, err = monitor.communicate(timeout=60)
    assert monitor.returncode == 0
    assert err == b"verdict=ok exit=0\n"


def test_the_launcher_imports_no_client_without_the_flag(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text("import torch")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpurun", "train.py"],
        cwd=tmp_path, env=clean_environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "gpurun.measure.run_events" in done.stderr
    assert "prometheus_client" not in done.stderr
    assert "gpurun.measure.live" not in done.stderr


def test_an_interrupt_at_the_end_leaves_the_scripts_exit_code(
    tmp_path: Path, in_process: Gpurun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(outputs: LiveOutputs, note: object = None) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveOutputs, "close", interrupted)
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    done = in_process("--prometheus", "0", "train.py")
    assert done.returncode == 3
    assert b"the last figures were interrupted" in done.stderr
