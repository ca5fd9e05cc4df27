"""The documentation builds as a site without a warning: links, anchors, docstrings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytest.importorskip("myst_parser", reason='the site is built with pip install -e ".[docs]"')


@pytest.mark.slow  # it reads every page and imports the classes; nothing quicker shows a dead link
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    words = ("-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees", "-c")
    done = subprocess.run(
        [sys.executable, *words, "docs/site", ".", tmp_path / "site"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "docs" / "site" / "interfaces.html").read_text()
    assert "FlushDenormal" in page
