"""Arguments of the script's own: those that the user asked to tune, and those that are secrets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpurun.records.record import record

MARK = "@tune"
"""The mark that stands in a tuned word in place of a value (`--lr @tune:0.1,0.2`)."""
MASK = "***"
"""Stands for a secret in all that is written or shown."""
_NAME = (
    r"(?:key|api[-_.]?keys|token|secrets?|password|passwd|passphrase|pwd|passwords|credentials?"
    r"|auth|authorization)"
)
_SECRET = re.compile(rf"{_NAME}['\"]?$", re.IGNORECASE)
"""Ends the name of a secret: `--wandb-api-key`, `authToken`, and not `--max-tokens`."""
_USER = re.compile(r"(?<=://)[^/?#\s@]*(?:@[^/?#\s@]*)*(?=@)")
"""User and password in an address."""
_IN_DOCUMENT = re.compile(rf"({_NAME}['\"]?\s*:\s*['\"]?)[^'\",}}\]]+", re.IGNORECASE)
"""A secret in JSON, YAML or a header: `{{"token": "..."}}`, `Authorization: Bearer ...`."""


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
    """The words of a command line without secrets: values of flags that are named like secrets
    (`--api-key=...`, `--api-key ...`, `TOKEN=...`), and users and passwords in addresses."""
    shown: list[str] = []
    after_flag = False
    for word in words:
        shown.append(MASK if after_flag and not word.startswith("-") else _masked_word(word))
        after_flag = word.startswith("-") and is_secret(word)
    return tuple(shown)


def masked_text(text: str) -> str:
    """The same for a text that may quote a command line."""
    return " ".join(masked(text.split(" ")))


def secrets_digest(words: Sequence[str]) -> str | None:
    """Four hexadecimal digits for the secrets among the words, None where there are none.

    So few show that a secret has changed, and do not help to guess it.
    """
    import hashlib  # the script's process has no need of it

    hidden = [word for word, shown in zip(words, masked(words), strict=True) if word != shown]
    text = "\0".join(hidden).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()[:4] if hidden else None


def _masked_word(word: str) -> str:
    name, equals, value = _USER.sub(MASK, word).partition("=")
    if equals:
        return f"{name}={MASK if is_secret(name) else _masked_word(value)}"
    return _IN_DOCUMENT.sub(rf"\1{MASK}", name)
