"""The documentation as a site: Sphinx reads the Markdown of this repository, and docstrings.

pip install -c constraints.txt -e ".[docs]"
sphinx-build -W --keep-going -c docs/site . site
"""

from importlib.metadata import version as version_of

project = "gpurun"
release = version_of("gpurun-torch")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["*.md", "docs/*.md", "docs/site/*.md"]
root_doc = "docs/site/index"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "description": "Runs, tunes and measures PyTorch."}
suppress_warnings = ["misc.highlighting_failure"]  # mermaid is no language of Pygments
