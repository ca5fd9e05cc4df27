"""Two tunings of one script in one folder: each comes to its end, and what they keep is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpurun.arguments import settings_file
from tests.conftest import Gpurun
from tests.forked import NURSERY, Nursery
from tests.integration.launched import start
from tests.integration.tunings import configure, training

EXIT_CODES = {"faster": 0, "no_gain": 0, "inconclusive": 3}

SAVES = """
import sys
from pathlib import Path
from gpurun.records.tuning import SavedSettings
from gpurun.arguments import settings_file
size, stop = int(sys.argv[2]), Path(sys.argv[3])
saved = SavedSettings({"loader_workers": size}, ("key",) * size, 2.0, {}, ("train.py",))
while not stop.exists():
    settings_file.save(Path(sys.argv[1]), saved)
"""


@pytest.mark.slow
def test_both_reach_a_verdict_and_the_settings_kept_can_be_applied(
    tmp_path: Path, clean_environment: dict[str, str], gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(training(60, sleep=0.008, pause=0.01))
    configure(tmp_path, "allow = ['pipeline']\nmax_trials = 4\nbudget = '10m'")
    words = ("--optimize", "--tune-only", "train.py")

    def tune(nursery: Nursery) -> subprocess.CompletedProcess[bytes]:
        return nursery.launch(words, tmp_path, clean_environment, timeout=800)

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(tune, (NURSERY, Nursery())))
    said = [one.stderr.decode() for one in both]

    verdicts = [text.splitlines()[-1].split()[0].removeprefix("verdict=") for text in said]
    assert [one.returncode for one in both] == [EXIT_CODES.get(v) for v in verdicts], said
    documents = [json.loads(p.read_text()) for p in tmp_path.glob(".gpurun/runs/*/tuning.json")]
    assert sorted(d["verdict"] for d in documents) == sorted(verdicts)
    assert "faster" in verdicts, said
    (kept,) = (tmp_path / ".gpurun" / "tuned").iterdir()
    settings = settings_file.load(kept).settings
    assert settings in [d["chosen"]["knobs"] for d in documents if d["verdict"] == "faster"]
    done = gpurun("--tuned", "train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert b"applied loader_workers" in done.stderr


@pytest.mark.slow
def test_two_tunings_in_one_folder_do_not_take_each_other_for_a_change(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(training(20, sleep=0.02))
    words = ("--optimize", "--tune-only", "--quiet", "train.py")
    both = [start(tmp_path, clean_environment, *words) for _ in range(2)]
    said = [one.communicate(timeout=800)[1].decode() for one in both]
    assert all("files changed" not in text for text in said)
    assert [one.returncode for one in both] == [5, 5], said
    assert all("it ended after 20 steps" in text for text in said)
    assert len(list(tmp_path.glob(".gpurun/runs/*/tuning.json"))) == 2


def test_settings_are_whole_at_every_moment_of_being_written_by_two(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    place, stop = tmp_path / "tuned" / "settings.json", tmp_path / "stop"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVES, str(place), str(size), str(stop)],
            env=clean_environment,
        )
        for size in (1, 5000)
    ]
    seen: list[int] = []
    try:
        while set(seen) != {1, 5000} or len(seen) < 300:
            assert [writer.poll() for writer in writers] == [None, None]
            if place.exists():
                saved = settings_file.load(place)
                assert len(saved.training_loaders) == saved.settings["loader_workers"]
                seen.append(len(saved.training_loaders))
    finally:
        stop.touch()
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [path.name for path in place.parent.iterdir()] == [place.name]
