"""Scripts of Lightning and of the Hugging Face Trainer (on accelerate) are tuned as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.records.failure import FailureKind
from tests.integration.tunings import launch, lines, report_of

FRAMEWORKS = Path(__file__).parent / "frameworks.py"
SHORT, LONG = (f"LENGTH, BATCH, EPOCHS = 256, 16, {n}" for n in (2, 400))
BROKEN = (FailureKind.EXCEPTION, FailureKind.EXIT_CODE, FailureKind.KNOB_FAILED, FailureKind.HUNG)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_it_is_tuned_and_no_change_breaks_it(tmp_path: Path, name: str) -> None:
    script = FRAMEWORKS.read_text()
    assert SHORT in script
    (tmp_path / "train.py").write_text(script.replace(SHORT, LONG))
    words = ("--optimize", "--tune-only", "--budget", "120s", "--max-trials", "4")
    done = launch(tmp_path, *words, "train.py", name)
    assert done.returncode in (0, 3), lines(done)
    left = {path.name for path in tmp_path.iterdir()} - {".gpurun"}
    assert left == {"train.py"}, "trials leave the folder as it was"
    trials = report_of(tmp_path)["trials"]
    assert len(trials) > 2, "something was tried"
    assert not {t["failure"] for t in trials} & set(BROKEN), lines(done)
