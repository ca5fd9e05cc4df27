"""Arguments of the script's own: those that the user asked to tune, and those that are secrets."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache

from gpurun.records.record import record

MARK = "@tune"
"""The mark that stands in a tuned word in place of a value (`--lr @tune:0.1,0.2`)."""
MASK = "***"
"""Stands for a secret in all that is written or shown."""
_KEYS = (
    r"(?:access|account|api|auth|client|deploy|encryption|license|master|private|secret|service"
    r"|signing|ssh|storage|aws|azure|comet|hf|neptune|openai|wandb)[-_. ]?(?:key|token)s?"
)
"""A bare `key` is none: it sorts a table or names a column."""
_NAME = (
    rf"(?:{_KEYS}|token|secrets?|passwords?|passwd|passphrase|pwd|credentials?|auth|authorization"
    r"|(?:db|pg|sql|user|admin|root|login)pass|(?<![a-z ])pass|(?<!by)(?<!com)pass(?==))"
)
"""Ends the name of a secret: `--wandb-api-key`, `authToken`, `db.pass`, not `--max-tokens`."""
_CLOSED = r"['\"\]\\]*"
_SECRET = re.compile(rf"{_NAME}{_CLOSED}$", re.IGNORECASE)
_OPENS = re.compile(rf"(?:(?P<flag>-)[^=\s]*|[\w-]+\.[\w.-]*){_NAME}$", re.IGNORECASE)
"""A word whose value is the next one: a flag, or a dotted name (`--set db.password x`)."""
_USER = re.compile(r"(?P<kept>://)(?P<value>[^/?#\s@]*(?:@[^/?#\s@]*)*)(?=@)")
"""User and password in an address."""
_RAW_USER = re.compile(r"(?P<kept>://)(?P<value>[^\s@:]*:[\s\S]*)(?=@)")
"""The same where a `/`, `?`, `#` or blank may be part of a password: up to the last `@`. With a
path that holds an `@` behind a port (`http://host:80/a@b`), more is hidden than need be."""
_RAW_USER_IN_TEXT = re.compile(r"(?P<kept>://)(?P<value>[^\s@:'\"<>`]*:[^\s'\"<>`]*)(?=@)")


def _assigned(bare: str) -> re.Pattern[str]:
    """A value behind its name and `=` or `:`, in a command line, JSON, YAML, a header or a repr.

    It ends with its quotation marks; without them it is `bare`, or a list that goes on to the end.
    """
    sign = r"\s*(?:(?P<colon>:)|=)>?\s*"
    quoted = r"(?:(?!(?P=mark))(?:\\[\s\S]|[\s\S]))*"
    kept = rf"(?P<kept>{_NAME}{_CLOSED}{sign}(?P<mark>\\*['\"])?)"
    return re.compile(rf"{kept}(?P<value>(?(mark){quoted}|(?:[\[({{][\s\S]*|{bare})))", re.I)


_QUOTED_OR_PLAIN = r"(?:\\*\"[^\"]*\"?|\\*'[^']*'?|[^\s;|&'\"]+)"
_FLAGGED = re.compile(
    rf"(?P<kept>(?<![\w.-])--?[\w.-]*{_NAME}(?:[ \t]+|\\*['\"],[ \t]*))"
    rf"(?P<value>{_QUOTED_OR_PLAIN}(?:[ \t]+(?!-){_QUOTED_OR_PLAIN})*)",
    re.IGNORECASE,
)
"""Values behind a flag in a text that quotes a command line, or a list of words."""
_IN_WORD = _RAW_USER, _USER, _assigned(r"[\s\S]+")
_IN_TEXT = _RAW_USER_IN_TEXT, _USER, _assigned(r"(?(colon)[^\n]+|\S+)"), _FLAGGED
_BETWEEN_PARTS = re.compile(r"[\s'\",:;()\[\]{}\\]+")
_LEAST = 6
"""A shorter secret is not looked for in texts: it would be found in plain words."""


@record
class TunedArgument:
    """`name`: "--lr", "lr=" for a word `lr=@tune:...`, "argument 2" for a second word without one.

    `word`: as typed, the word `position` (from 0) of the script's arguments. `values`: the first is
    the script as it is, the others are candidates. `effect`: "pipeline", "numerics" or "training".
    """

    name: str
    word: str
    position: int
    values: tuple[str, ...]
    effect: str

    def holding(self, value: str) -> str:
        """The word with a value in the place of the mark and its list."""
        return self.word.partition(MARK)[0] + value


def is_secret(name: str) -> bool:
    """True if a flag or variable of this name holds a secret."""
    return _SECRET.search(name) is not None


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line without secrets: all values of a flag that is named like a
    secret (`--api-key=...`, `--api-keys ... ...`), named ones inside a word (`TOKEN=...`, JSON,
    headers), and users and passwords in addresses."""
    return tuple(shown for shown, _ in _divided(words))


def masked_text(text: str, words: Sequence[str] = ()) -> str:
    """The same for a text, which may quote a command line, a document or a lone value.

    Secrets of this process's own arguments, and of the command line `words`, are masked wherever
    they stand.
    """
    lines = (sys.orig_argv, getattr(sys, "argv", ()), words)
    known = {secret for line in lines for secret in _secrets(tuple(map(str, line)))}
    shown = _hide(text, _IN_TEXT)
    for secret in sorted(known, key=len, reverse=True):
        shown = shown.replace(secret, MASK).replace(repr(secret)[1:-1], MASK)
    return shown


def secrets_digest(words: Sequence[str]) -> str | None:
    """Four hexadecimal digits for the secrets among the words, None where there are none.

    So few show that a secret has changed, and do not help to guess it.
    """
    import hashlib  # the script's process has no need of it

    hidden = [word for word, shown in zip(words, masked(words), strict=True) if word != shown]
    text = "\0".join(hidden).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:4] if hidden else None


@cache
def _secrets(words: tuple[str, ...]) -> frozenset[str]:
    """The secrets in a command line and their parts, as far as they can be looked for in texts."""
    values = [value for _, found in _divided(words) for value in found]
    parts = {part for value in values for part in (value, *_BETWEEN_PARTS.split(value))}
    return frozenset(part for part in parts if len(part) >= _LEAST)


def _divided(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each word as it is shown, and the secrets in it.

    The first word behind a secret's flag is its value even if it looks like a flag.
    """
    first = further = False
    for word in words:
        if first or (further and not word.startswith("-")):
            first = False
            yield MASK, [word]
            continue
        values: list[str] = []
        yield _hide(word, _IN_WORD, values), values
        opens = _OPENS.match(word)
        further = opens is not None
        first = opens is not None and opens["flag"] is not None


def _hide(text: str, patterns: Sequence[re.Pattern[str]], values: list[str] | None = None) -> str:
    """The text without what the patterns find, which is appended to `values`."""

    def hide(match: re.Match[str]) -> str:
        if values is not None:
            values.append(match["value"])
        return match["kept"] + MASK

    for pattern in patterns:
        text = pattern.sub(hide, text)
    return text
