"""A page as one HTML document that needs neither the network nor JavaScript."""

from __future__ import annotations

from html import escape

from gpurun.formatting.one_line import one_line
from gpurun.report.page.page_blocks import (
    Block,
    Bullets,
    Card,
    Code,
    Page,
    PagePart,
    Paragraph,
    Picture,
    Pictures,
    Section,
    Table,
)
from gpurun.report.page.svg_charts import svg
from gpurun.report.terminal_table import Column, Grid

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;
--good:#1a7f37;--bad:#cf222e;--warn:#9a6700;
--c0:#1f6feb;--c1:#1a7f37;--c2:#bf6a02;--c3:#8250df;--c4:#cf222e;--c5:#8c959f;--c6:#0e7c86;--c7:#bf3989}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#30363d;
--card:#161b22;--good:#3fb950;--bad:#f85149;--warn:#d29922;
--c0:#58a6ff;--c1:#3fb950;--c2:#f0883e;--c3:#bc8cff;--c4:#ff7b72;--c5:#6e7681;--c6:#39c5cf;--c7:#f778ba}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:64rem;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .5rem}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;padding-top:1rem;border-top:2px solid var(--line)}
h3{font-size:1.05rem;margin:2rem 0 .5rem}
p,ul{margin:.5rem 0}
ul{padding-left:1.25rem}
.lead{font-size:1.2rem;font-weight:600;line-height:1.4}
.soft{color:var(--soft)}
code,pre{font:.875em/1.45 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
code{background:var(--card);border-radius:4px;padding:.1em .3em}
pre{background:var(--card);border-radius:6px;padding:.6rem .8rem;margin:.4rem 0;
white-space:pre-wrap}
table{border-collapse:collapse;margin:.75rem 0;font-size:.9rem;max-width:100%}
th,td{padding:.35rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600}
td{min-width:5.5rem}
td.r,th.r{text-align:right;font-variant-numeric:tabular-nums;min-width:0}
.wide td.r{white-space:nowrap}
.wide td.t{white-space:normal}
.wide th{min-width:6rem;font-size:.8rem}
.wide td:first-child:not(.r){min-width:9rem}
.wide td:last-child:not(.r){min-width:10rem}
tr.dim td{color:var(--soft)}
tr.bold td{font-weight:650}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1.5rem}
figure{margin:.75rem 0;max-width:35rem}
figcaption{color:var(--soft);font-size:.875rem;margin-top:.25rem}
svg{display:block;width:100%;height:auto}
svg text{font-size:13px;fill:var(--ink);font-family:inherit}
svg .h,svg .b{font-weight:650}
svg .g{stroke:var(--line);stroke-width:1}
svg .m{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 3}
svg .w{stroke:var(--ink);stroke-width:2}
svg .l{fill:none;stroke-width:1.75;stroke-linejoin:round}
svg .d{stroke-dasharray:6 4}
svg .f0{fill:var(--c0)}svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}svg .f3{fill:var(--c3)}
svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}svg .f6{fill:var(--c6)}svg .f7{fill:var(--c7)}
svg .s0{stroke:var(--c0)}svg .s1{stroke:var(--c1)}svg .s2{stroke:var(--c2)}svg .s3{stroke:var(--c3)}
svg .s4{stroke:var(--c4)}svg .s5{stroke:var(--c5)}svg .s6{stroke:var(--c6)}svg .s7{stroke:var(--c7)}
.card{background:var(--card);border-left:4px solid var(--c0);border-radius:4px;padding:.6rem .9rem;
margin:.75rem 0;break-inside:avoid}
.card p{margin:.2rem 0}
.critical{border-color:var(--bad)}.warning{border-color:var(--warn)}
.level{font-size:.8rem;text-transform:uppercase;letter-spacing:.04em;color:var(--soft)}
@media (max-width:68rem){
td:not(.r),.wide th:not(.r){min-width:5.6rem}
.wide th.r{min-width:5.2rem}
.wide td:first-child:not(.r),.wide td:last-child:not(.r){min-width:8rem}
}
@media screen and (max-width:59.9rem){
body{padding-top:1rem}
svg text{font-size:15px}
table.wide,table.wide tbody,table.wide tr,table.wide td{display:block;width:100%}
table.wide thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table.wide tr{border-bottom:2px solid var(--line);padding:.5rem 0}
table.wide td,table.wide td.r{min-width:0!important;border:0;padding:.1rem 0;
text-align:left;white-space:normal}
table.wide td:first-child{font-weight:650}
table.wide td:empty{display:none}
table.wide td[data-name]::before{content:attr(data-name) ": ";color:var(--soft);font-weight:400}
}
@media print{
:root{--bg:#fff;--ink:#000;--soft:#444;--line:#bbb;--card:#f4f4f4;--good:#1a7f37;--bad:#cf222e;--warn:#9a6700;
--c0:#1f6feb;--c1:#1a7f37;--c2:#bf6a02;--c3:#8250df;--c4:#cf222e;--c5:#8c959f;--c6:#0e7c86;--c7:#bf3989}
body{max-width:none;font-size:11pt}
figure,tr{break-inside:avoid}
h2,h3{break-after:avoid}
}
"""
"""One style sheet, without anything from elsewhere."""


POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Even if foreign text came through, nothing would run and nothing would be loaded."""
GENERATOR = '<meta name="generator" content="gpurun">'
"""By it a page is known as one that gpurun made."""
WIDE = 4
"""Tables of so many columns become lists on a phone."""
LONG_FIGURE = 20
"""A figure with more characters may be broken into lines."""


def html_page(page: Page) -> str:
    """The whole document."""
    several = len(page.parts) > 1
    body = "\n".join(_part(part, several) for part in page.parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{_text(page.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{_text(page.title)}</h1>
{body}
</main>
</body>
</html>
"""


def _part(part: PagePart, several: bool) -> str:
    heading = f"<h2>{_text(part.title)}</h2>" if several else ""
    level = 3 if several else 2
    sections = "\n".join(_section(section, level) for section in part.sections)
    missing = "".join(f'<p class="soft">Missing: {_text(line)}</p>' for line in part.missing)
    return f"{heading}\n{sections}\n{missing}"


def _section(section: Section, level: int) -> str:
    heading = f"<h{level}>{_text(section.title)}</h{level}>" if section.title else ""
    blocks = "\n".join(map(_block, section.blocks))
    return f"<section>\n{heading}\n{blocks}\n</section>"


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        kind = ' class="lead"' if block.strong else ""
        return f"<p{kind}>{_text(block.text)}</p>"
    if isinstance(block, Bullets):
        return f"<ul>{''.join(f'<li>{_text(item)}</li>' for item in block.items)}</ul>"
    if isinstance(block, Code):
        return f"<p>{_text(block.introduction)}</p><pre>{_text(block.text)}</pre>"
    if isinstance(block, Table):
        return _table(block.grid)
    if isinstance(block, Picture):
        return _figure(block)
    if isinstance(block, Pictures):
        return f'<div class="pictures">{"".join(map(_figure, block.pictures))}</div>'
    return _card(block)


def _figure(picture: Picture) -> str:
    caption = f"<figcaption>{_text(picture.sentence)}</figcaption>"
    return f"<figure>{svg(picture.chart)}{caption}</figure>"


def _card(card: Card) -> str:
    lines = "".join(f"<p>{_text(line)}</p>" for line in card.lines)
    code = f"<pre>{_text(card.code)}</pre>" if card.code else ""
    level = f'<span class="level">{_text(card.level)}</span>'
    title = f"<p>{level}<br><strong>{_text(card.title)}</strong></p>"
    return f'<div class="card {_text(card.level)}">{title}{code}{lines}</div>'


def _table(grid: Grid) -> str:
    wide = ' class="wide"' if len(grid.columns) >= WIDE else ""
    heading = "".join(
        f'<th scope="col"{_side(column)}>{_text(column.heading)}</th>' for column in grid.columns
    )
    styles = grid.styles or ("",) * len(grid.rows)
    rows = "\n".join(_row(grid, row, style) for row, style in zip(grid.rows, styles, strict=True))
    return f"<table{wide}><thead><tr>{heading}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _row(grid: Grid, row: tuple[str, ...], style: str) -> str:
    kind = f' class="{style}"' if style in ("dim", "bold") else ""
    cells = "".join(
        f"<td{_side(column, cell)}{_name(column, i)}>{_cell(cell)}</td>"
        for i, (column, cell) in enumerate(zip(grid.columns, row, strict=True))
    )
    return f"<tr{kind}>{cells}</tr>"


def _cell(words: str) -> str:
    """A long name is broken behind an underscore rather than anywhere."""
    return _text(words).replace("_", "_<wbr>")


def _side(column: Column, cell: str = "") -> str:
    """Figures stand on the right, unbroken unless they are long."""
    long = " t" if len(cell) > LONG_FIGURE else ""
    return f' class="r{long}"' if column.right else ""


def _name(column: Column, index: int) -> str:
    """The heading again, which a phone shows before the cell."""
    return f' data-name="{_text(column.heading)}"' if index and column.heading else ""


def _text(words: str) -> str:
    kept = one_line(words).replace(" %", "\N{NO-BREAK SPACE}%").replace("< ", "<\N{NO-BREAK SPACE}")
    return escape(kept, quote=True)
