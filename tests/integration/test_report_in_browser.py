"""The page in a real browser: no message on the console, nothing wider than the window, every
picture has a size.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.commands.diagnosed_launch import diagnose_run
from gpurun.records.scaling import ProjectedPoint, ScalingPoint, ScalingProjection, ScalingReport
from gpurun.report.page.html_page import html_page
from gpurun.report.page.run_contents import RunContents, read_contents
from gpurun.report.page.run_page import run_page
from tests.recordings import unpacked

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

pytestmark = pytest.mark.skipif(
    not BROWSER, reason="no chromium, chromium-browser or google-chrome on this machine"
)

WORD = "a_word_without_any_break_" * 12
POLICY = re.compile(r"<meta http-equiv=.Content-Security-Policy.[^>]*>")
MEASURE = """<script>
const boxes = [...document.querySelectorAll("body *")].map(e => [e, e.getBoundingClientRect()]);
const pictures = [...document.querySelectorAll("svg")].map(e => e.getBoundingClientRect());
parent.postMessage(JSON.stringify({
  window: innerWidth,
  page: document.documentElement.scrollWidth,
  wide: boxes.filter(([e, b]) => !e.closest("thead") && b.width && b.right > innerWidth + 0.5)
    .map(([e, b]) => `${e.tagName} ${b.right}: ${e.textContent.slice(0, 60)}`),
  pictures: pictures.map(b => [b.width, b.height]),
  words: [...document.querySelectorAll("svg text")].filter(e => {
    const inner = e.getBoundingClientRect(), outer = e.closest("svg").getBoundingClientRect();
    return inner.left < outer.left - 1 || inner.right > outer.right + 1;
  }).map(e => e.textContent),
}), "*");
</script>"""
FRAME = """<!doctype html><script>onmessage = e => { document.title = e.data };</script>
<iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe>"""
"""A browser's own window is never as narrow as a phone."""


def scaled() -> RunContents:
    points = tuple(
        ScalingPoint(n, 100.0 * n, float(n), 1.0, None, None, None, 10**9) for n in (1, 2, 4, 8)
    )
    ahead = tuple(ProjectedPoint(n, None, 0.9 * n, 0.9, (0.8, 1.0)) for n in (16, 32, 64))
    projection = ScalingProjection(
        "projected", "t", 1.0, None, None, (1, 2, 4, 8), ("all stays",), ahead
    )
    report = ScalingReport(
        "weak", "ok", 0, ("train.py",), "NVIDIA H200", 8, False, None, 3, None, points, (),
        projection, 60.0,
    )  # fmt: skip
    return RunContents("scaling", ("train.py",), scaling=report)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuning, a run and a scaling on one page, with words that have no place to break."""
    folder = tmp_path_factory.mktemp("page")
    names = ("gpt124m_tuning", "simplenet_as_written")
    runs = [read_contents(unpacked(name, folder), diagnose_run) for name in names]
    assert runs[0].tuning is not None
    tuning = replace(runs[0].tuning, decisions=(WORD,), isolation=WORD)
    trials = (replace(tuning.trials[0], reason=WORD), *tuning.trials[1:])
    runs[0] = replace(runs[0], name=WORD, command=(WORD,), tuning=tuning, trials=trials)
    path = folder / "report.html"
    path.write_text(html_page(run_page([*runs, scaled()], ReportConfig(price_per_hour=2.8))))
    return path


def browse(path: Path, *flags: str) -> tuple[str, str]:
    """The document as the browser has it after loading, and the messages of its console."""
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={path.parent / 'profile'}", "--enable-logging=stderr",
            "--window-size=1400,900", "--dump-dom", *flags, f"file://{path}",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, "\n".join(x for x in done.stderr.splitlines() if "CONSOLE" in x)


def measured(page: Path, width: int) -> dict[str, Any]:
    """Sizes in a copy of the page that is allowed to measure itself."""
    copy = page.with_name(f"measured-{width}.html")
    copy.write_text(POLICY.sub("", page.read_text()).replace("</body>", f"{MEASURE}</body>"))
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(FRAME.replace("{page}", copy.name).replace("{width}", str(width)))
    document, _ = browse(frame)
    (title,) = re.findall(r"<title>(\{.*?\})</title>", document, re.DOTALL)
    found: dict[str, Any] = json.loads(html.unescape(title))
    return found


@pytest.mark.parametrize("width", [390, 960, 1280])
def test_nothing_is_wider_than_the_window_and_every_picture_has_a_size(
    page: Path, width: int
) -> None:
    found = measured(page, width)
    assert found["window"] == width
    assert found["wide"] == []
    assert found["page"] <= width
    assert len(found["pictures"]) > 10
    assert all(w > 300 and h > 40 for w, h in found["pictures"])
    assert found["words"] == []


@pytest.mark.parametrize("scheme", [0, 1])
def test_the_console_stays_empty(page: Path, scheme: int) -> None:
    _, messages = browse(page, f"--blink-settings=preferredColorScheme={scheme}")
    assert messages == ""


def test_a_message_on_the_console_would_be_seen(page: Path) -> None:
    copy = page.with_name("noisy.html")
    copy.write_text(page.read_text().replace("</body>", "<script>alert(1)</script></body>"))
    assert "Content Security Policy" in browse(copy)[1]
