"""Parsing the user's source in the user's process, unheard."""

from __future__ import annotations

import ast
import linecache
import warnings


def parsed(file: str) -> ast.Module | None:
    """The syntax tree of a file, None if it cannot be read as python.

    The parser warns of invalid escapes, which python said when it compiled the file or keeps to
    itself. `warnings.catch_warnings` would make python forget which other warnings it has shown,
    so that the script's would come again: only the list of filters is exchanged.
    """
    source = "".join(linecache.getlines(file))
    filters = warnings.filters
    warnings.filters = [("ignore", None, Warning, None, 0)]
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        warnings.filters = filters
