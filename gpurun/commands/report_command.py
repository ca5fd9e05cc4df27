"""`gpurun report`: one page about a run, or about several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.subcommand_flags import ReportOptions, parse_report
from gpurun.commands.diagnosed_launch import diagnose_run
from gpurun.commands.written_outputs import check_outputs, emit_text, must_write, print_verdict
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.parse_json import open_regular
from gpurun.rundir import existing_home, named_run, newest_run, write_whole

if TYPE_CHECKING:
    from gpurun.report.page.page_blocks import Page
    from gpurun.report.page.run_contents import RunContents

HELP = """\
usage: gpurun report [flags] [RUN...]     a page about a run, or several side by side

RUN is a run folder, its name below .gpurun/runs, or a document that --json wrote. Without one,
the page shows the newest run. It is one HTML file that needs neither network nor JavaScript.

{flags}

[report] of gpurun.toml has price_per_hour, currency and grams_co2_per_kwh. Without a price the page
does not speak of money. The exit code is 0, whatever the page says.
"""
FLAGS = flags_of(ReportOptions)
HEAD_BYTES = 1024
"""So far from its beginning a page names who made it."""


def report(argv: list[str]) -> int:
    """Read the runs and write the page; exit code 0 whatever stands in it."""
    options = parse_report(argv)
    config = load_config(Path.cwd())
    paths = find_runs(options.runs, existing_home(Path.cwd(), options.out or config.out))
    html = options.html or str(default_page(paths))
    check_outputs(html=html, markdown=options.markdown, png=options.png)
    if options.html is None and not paths[0].is_dir():
        _keep_users_page(Path(html))

    from gpurun.report.page.html_page import html_page
    from gpurun.report.page.markdown_page import markdown_page
    from gpurun.report.page.run_contents import read_contents
    from gpurun.report.page.run_page import run_page

    contents = [read_contents(path, diagnose_run) for path in paths]
    prices = config.report
    if options.price is not None:
        prices = replace(prices, price_per_hour=options.price)
    page = run_page(contents, prices)
    text = html_page(page)
    if options.html is None:
        must_write("the page", lambda: write_whole(Path(html), text))
    else:
        emit_text(html, text, "--html", needed=True)
    if options.markdown is not None:
        emit_text(options.markdown, markdown_page(page), "--markdown", needed=True)
    missing = [line for run in contents for line in run.missing]
    if options.png is not None:
        picture = Path(options.png)
        must_write("--png", lambda: missing.extend(_draw(picture, page, contents)))
    if not options.quiet:
        _tell(html, missing)
    print_verdict("ok", int(ExitCode.OK), runs=len(paths), missing=len(missing), page=html)
    return int(ExitCode.OK)


def find_runs(names: Sequence[str], home: Path) -> list[Path]:
    """The folders or documents of these names; the newest run if there are none."""
    if not names:
        newest = newest_run(home)
        if newest is None:
            raise GpurunError(
                f"there is no run below {home / 'runs'}", "run a script under gpurun, or name a run"
            )
        return [newest]
    return [_find_run(name, home) for name in names]


def _find_run(name: str, home: Path) -> Path:
    found = named_run(home, name)
    if found is not None:
        return found
    raise GpurunError(
        f"there is no run {name!r}", f"name a run folder, or one of those in {home / 'runs'}"
    )


def default_page(paths: Sequence[Path]) -> Path:
    """Where the page goes unless the user says so."""
    first = paths[0]
    if first.is_symlink():
        raise GpurunError(f"{first} is a link", "name what it leads to, or a page with --html")
    if first.is_file():
        return first.with_suffix(".html")
    return first / ("report.html" if len(paths) == 1 else "side-by-side.html")


def _keep_users_page(path: Path) -> None:
    """`GpurunError` for a file of this name that gpurun did not make: nobody has typed the name.

    Not for the page in a folder of records, which is gpurun's own.
    """
    from gpurun.report.page.html_page import GENERATOR

    try:
        with open_regular(path) as file:
            is_ours = GENERATOR.encode() in file.read(HEAD_BYTES)
    except FileNotFoundError:
        return
    except OSError:
        is_ours = False
    if not is_ours:
        what = f"{path} is there, and gpurun did not make it"
        raise GpurunError(what, "name another file with --html FILE")


def _draw(path: Path, page: Page, contents: Sequence[RunContents]) -> list[str]:
    """Write the picture; what is missing where there is none."""
    from gpurun.report.plots.run_plot import draw_runs

    drawn = draw_runs(path, page, contents)
    return [] if drawn else ["--png: nothing in these records can be drawn"]


def _tell(page: str, missing: Sequence[str]) -> None:
    from gpurun.formatting.number_text import byte_size
    from gpurun.formatting.one_line import one_line
    from gpurun.report.terminal_output import PREFIX, VERBATIM, write_lines

    lines = [[("missing: ", "yellow"), (one_line(line), "")] for line in missing]
    if page != "-":
        size = byte_size(Path(page).stat().st_size)
        lines.append([("page: ", "dim"), (page, VERBATIM), (f" ({size})", "dim")])
    write_lines([[(PREFIX, "bold cyan"), *line] for line in lines])
