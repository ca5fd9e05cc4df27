"""Short names of device kernels: C++ signatures of some hundred characters are not read by anyone.

`void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>, …>(int, …)`
becomes `vectorized_elementwise_kernel<CUDAFunctor_add>`.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 60
_NAMESPACE = re.compile(r"(?:\w+|\(anonymous namespace\)|\{anonymous\})::")
_WORD = re.compile(r"[A-Za-z_]\w{3,}")
_PLAIN = frozenset(
    {"void", "bool", "char", "short", "long", "float", "double", "true", "false"}
    | {"unsigned", "signed", "const", "lambda", "array"}
)
"""Words of four letters and more that tell nothing."""
_TELLING = re.compile(r"functor|op$", re.IGNORECASE)


def short_kernel_name(signature: str) -> str:
    """The kernel's own name, and of its template arguments the one that says what it computes.

    A name that is no C++ signature stays as it is; all are cut off with "…" after
    `MOST_CHARACTERS`.
    """
    plain = _NAMESPACE.sub("", signature).removeprefix("void ")
    name = re.match(r"[\w.]*", plain)
    base = name.group() if name else ""
    if not base:
        return _cut(signature)
    rest = plain[len(base) :]
    if not rest.startswith("<"):
        return _cut(base if rest.startswith("(") else plain)
    words = [w for w in _WORD.findall(_inside(rest)) if w not in _PLAIN]
    telling = next((w for w in words if _TELLING.search(w)), words[0] if words else None)
    return _cut(base if telling is None else f"{base}<{telling}>")


def _inside(text: str) -> str:
    """What stands between the first `<` and its `>`; all that follows it where none closes it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">" and text[place - 1] != "-")
        if depth == 0:
            return text[1:place]
    return text[1:]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
