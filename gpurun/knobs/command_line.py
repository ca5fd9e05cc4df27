"""Editing the script's command line by its flags."""

from __future__ import annotations


def with_flag(
    argv: tuple[str, ...], flag: str, new: str, old: str | None = None
) -> tuple[str, ...]:
    """The words with `flag` set to `new`, added at the end of the options where it is not there.

    `old` is its present value. It separates abbreviations that argparse accepts (`--batch`) and
    values without a space (`-b32`) from other words.
    """
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    found = False
    for i in range(end):
        word, equals, attached = words[i].partition("=")
        following = words[i + 1] if i + 1 < end else None
        # argparse takes the unique beginning of a long flag for the flag
        beginning = word.startswith("--") and len(word) > 3 and flag.startswith(word)
        known = old is not None and old in (attached, following)
        if word == flag or (beginning and known):
            if equals:
                words[i], found = f"{word}={new}", True
            elif following is not None:
                words[i + 1], found = new, True
        elif old is not None and len(flag) == 2 and words[i] == flag + old:
            words[i], found = flag + new, True
    return tuple(words) if found else (*words[:end], flag, new, *words[end:])
