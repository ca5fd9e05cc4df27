"""Copies of a tree among the installed packages, by what their installers wrote down."""

from __future__ import annotations

import json
from pathlib import Path

from gpurun.bench.trees.installed_packages import Tree, copies


def test_the_files_of_a_copy_are_those_that_its_installer_listed(tmp_path: Path) -> None:
    """Some installers list none: then nothing is known of them."""
    tree, place = Tree(tmp_path / "tree"), tmp_path / "site-packages"
    metadata = place / "pkg-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: pkg\nVersion: 1\n")
    (metadata / "direct_url.json").write_text(json.dumps({"url": f"file://{tree.root}"}))
    assert list(copies([place], tree)) == []
    (metadata / "RECORD").write_text("pkg-1.dist-info/direct_url.json,,\npkg.py,,\n")
    listed = metadata / "direct_url.json"
    assert dict(copies([place], tree)) == {listed: listed, place / "pkg.py": listed}
