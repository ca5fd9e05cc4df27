"""SVG as text: elements, and the picture around them. Colours are classes of the page's style."""

from __future__ import annotations

from html import escape

from gpurun.formatting.one_line import one_line

WIDTH = 480
"""Units of every picture's width; letters of 13 units stay readable on a phone."""


def element(name: str, content: str = "", /, **attributes: str | float) -> str:
    """An element whose content is SVG already. `class_` and `text_anchor` become attributes."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{told}>{content}</{name}>" if content else f"<{name}{told}/>"


def text(words: str, x: float, y: float, kind: str = "", anchor: str = "start") -> str:
    """Foreign text at a place; `kind` is a class of the style."""
    content = escape(one_line(words))
    return element("text", content, x=x, y=y, class_=kind or "t", text_anchor=anchor)


def svg_picture(title: str, height: float, elements: list[str]) -> str:
    """A picture with a size and a name for screen readers."""
    return element(
        "svg",
        "".join(elements),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {_number(height)}",
        width=WIDTH,
        height=height,
        role="img",
        aria_label=one_line(title),
    )


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
