"""Edits of one source file, at the positions of its syntax tree; all else stays byte for byte."""

from __future__ import annotations

import ast
import codecs
import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpurun.records.messages.training_events import SourceSiteEvent

POSITIONS = {"num_workers": 5, "pin_memory": 7}
"""The places of `DataLoader`'s arguments that may stand in a call without their names."""


class SourceEdits:
    """Collects the edits of a file. `OSError` or `ValueError` if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.before = path.read_bytes()
        self._mark = codecs.BOM_UTF8 if self.before.startswith(codecs.BOM_UTF8) else b""
        self._source = self.before.removeprefix(self._mark)
        self._source.decode("utf-8")
        try:
            self._tree = ast.parse(self._source)
        except SyntaxError as error:
            raise ValueError(str(error)) from None
        lines = self._source.splitlines(keepends=True)
        self._newline = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._edits: list[tuple[int, int, bytes]] = []
        self._keywords: dict[ast.Call, dict[str, str]] = {}

    def copy(self) -> SourceEdits:
        """The same edits so far; later ones of either are not those of the other."""
        other = copy.copy(self)
        other._edits = list(self._edits)
        other._keywords = {call: dict(values) for call, values in self._keywords.items()}
        return other

    def result(self) -> bytes:
        """The file with all edits; `ValueError` if they overlap or make it no source."""
        whole = self.copy()
        for call, values in self._keywords.items():
            whole._write_keywords(call, values)
        parts, done = [self._mark], 0
        for start, end, text in sorted(whole._edits, key=lambda edit: edit[:2]):
            if start < done:
                raise ValueError("two changes of the same words")
            parts += [self._source[done:start], text]
            done = end
        made = b"".join([*parts, self._source[done:]])
        try:
            ast.parse(made)
        except SyntaxError as error:
            raise ValueError(str(error)) from None
        return made

    # -- calls ---------------------------------------------------------------------------------

    def call_at(self, site: SourceSiteEvent) -> ast.Call | None:
        """The call at a site. Without columns: the only call that begins on its line."""
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        if site.column is not None:
            place = (site.line, site.column, site.end_line, site.end_column)
            calls = [node for node in calls if _place(node) == place]
        else:
            calls = [node for node in calls if node.lineno == site.line]
        return calls[0] if len(calls) == 1 else None

    def set_keywords(self, call: ast.Call, values: Mapping[str, str]) -> None:
        """Give a call these arguments, whatever it has of them."""
        self._keywords.setdefault(call, {}).update(values)

    def _write_keywords(self, call: ast.Call, values: Mapping[str, str]) -> None:
        rest = dict(values)
        spelled_out = not any(isinstance(argument, ast.Starred) for argument in call.args)
        for name, place in POSITIONS.items():
            if name in rest and spelled_out and place < len(call.args):
                self._replace(call.args[place], rest.pop(name))
        for keyword in call.keywords:
            if keyword.arg in rest:
                self._replace(keyword.value, rest.pop(keyword.arg))
        spread = [keyword.value for keyword in call.keywords if keyword.arg is None]
        words = ", ".join(f"{name}={value}" for name, value in rest.items())
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not rest:
            return
        if spread:  # a name in it would be given twice
            entries = ", ".join(f'"{name}": {value}' for name, value in rest.items())
            self._replace(spread[-1], f"{{**{self._text(spread[-1])}, {entries}}}")
        elif not given:
            self._insert(self._end(call) - 1, words)
        else:
            last = max(given, key=self._end)
            if self._end(last) == self._end(call):  # f(x for x in y): its brackets are the call's
                self._insert(self._start(last), "(")
                words = f"{words})"
            self._insert(self._end(last), f", {words}")

    def wrap_value(self, call: ast.Call, function: str) -> None:
        """`function(f(x))` in place of `f(x)`; `ValueError` where that is no value, in a class."""
        if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
            raise ValueError("a class of your own builds the loader")
        self._insert(self._start(call), f"{function}(")
        self._insert(self._end(call), ")")

    def wrap_call(self, call: ast.Call, function: str) -> None:
        """`function(f, x)` in place of `f(x)`."""
        end = self._end(call.func)
        bracket = self._source.index(b"(", end)
        self._insert(self._start(call), f"{function}(")
        between = ", " if call.args or call.keywords else ""
        self._edits.append((end, bracket + 1, between.encode()))

    # -- statements ----------------------------------------------------------------------------

    def takes_statement_after(self, site: SourceSiteEvent) -> bool:
        """True if another statement may follow that of a site: it returns nothing, and stands alone
        on its lines."""
        statement = self._statement_at(site)
        if statement is None or isinstance(statement, ast.Return):
            return False
        return self._indent(statement) is not None

    def insert_after(self, site: SourceSiteEvent, line: str) -> None:
        """Add a statement after the one that a site is part of, in its block."""
        statement = self._statement_at(site)
        assert statement is not None
        self._insert_lines(statement, [f"{self._indent(statement)}{line}"])

    def drop_statement(self, site: SourceSiteEvent) -> bool:
        """`pass` in place of a statement that is only the call at a site; False if it is more."""
        call, statement = self.call_at(site), self._statement_at(site)
        if call is None or not isinstance(statement, ast.Expr) or statement.value is not call:
            return False
        self._replace(statement, "pass")
        return True

    def insert_after_imports(self, imports: Sequence[str], text: str) -> None:
        """Add imports that are not there yet and `text`, once torch is imported."""
        head = self._head()
        known = {ast.unparse(one) for one in head}
        lines = [*(line for line in imports if line not in known), *text.splitlines()]
        if head:
            self._insert_lines(head[-1], lines)
        else:
            self._edits.append((0, 0, b"".join(self._line(line) for line in lines)))

    def _head(self) -> list[ast.stmt]:
        """The statements up to the imports of torch, else those with which the file begins."""
        body, imports = self._tree.body, (ast.Import, ast.ImportFrom)
        end = next((n for n, one in enumerate(body) if _imports_torch(one)), 0)
        if end == 0 and body and ast.get_docstring(self._tree) is not None:
            end = 1
        while end < len(body) and isinstance(body[end], imports):
            end += 1
        return body[:end]

    def _statement_at(self, site: SourceSiteEvent) -> ast.stmt | None:
        """The innermost simple statement that holds the line of a site."""
        found = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.stmt)
            and not hasattr(node, "body")
            and node.lineno <= site.line <= (node.end_lineno or node.lineno)
        ]
        return min(found, key=lambda node: self._end(node) - self._start(node), default=None)

    def _indent(self, statement: ast.stmt) -> str | None:
        """The white space before a statement; None if it shares its lines with another one."""
        line = self._starts[statement.lineno - 1]
        before = self._source[line : self._start(statement)]
        after = self._source[self._end(statement) : self._starts[statement.end_lineno or 0]]
        alone = not before.strip() and (not after.strip() or after.lstrip().startswith(b"#"))
        return before.decode() if alone else None

    def _insert_lines(self, statement: ast.stmt, lines: Sequence[str]) -> None:
        place = self._starts[statement.end_lineno or statement.lineno]
        text = b"".join(self._line(line) for line in lines)
        if place == len(self._source) and not self._source.endswith((b"\n", b"\r")):
            text = self._newline + text.removesuffix(self._newline)
        self._edits.append((place, place, text))

    # -- text ----------------------------------------------------------------------------------

    def _line(self, line: str) -> bytes:
        return line.rstrip().encode() + self._newline

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _insert(self, place: int, text: str) -> None:
        self._edits.append((place, place, text.encode()))

    def _replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        self._edits.append((self._start(node), self._end(node), text.encode()))


def _place(node: ast.Call) -> tuple[int, int, int | None, int | None]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _imports_torch(statement: ast.stmt) -> bool:
    names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
    if isinstance(statement, ast.ImportFrom) and not statement.level:
        names = [statement.module or ""]
    return any(name.partition(".")[0] == "torch" for name in names)
