"""A sample of a loop's jump, which has no line of its own, counts for the line before it."""

from __future__ import annotations

import types

from gpurun.runtime.profile.stack_samples import _line_of

SOURCE = """
def walk(rows):
    for row in rows:
        for value in row:
            if value > 1:
                yield value
"""


def test_every_place_in_a_function_has_a_line_of_it() -> None:
    names: dict[str, types.FunctionType] = {}
    exec(compile(SOURCE, "walk.py", "exec"), names)
    code = names["walk"].__code__
    known = {line for _, _, line in code.co_lines() if line is not None}
    known.add(code.co_firstlineno)  # the start of a generator, in Python 3.10
    for offset in range(0, len(code.co_code), 2):
        frame = types.SimpleNamespace(f_lineno=None, f_lasti=offset, f_code=code)
        assert _line_of(frame) in known  # type: ignore[arg-type]


def test_a_frame_that_knows_its_line_is_believed() -> None:
    assert _line_of(types.SimpleNamespace(f_lineno=7)) == 7  # type: ignore[arg-type]
