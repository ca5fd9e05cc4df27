"""Who else reads the batch size decides whether a loader may be resized silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.tuner.script_facts import batch_size_uses

CASES = {
    "a number written out, and other numbers": (
        "loader = DataLoader(data, batch_size=32)\ntest = DataLoader(held_out, 32)\n"
        "net = Linear(320, 10)\nscale = 32.0\n", "32", (),
    ),
    "the same number, written out again": (
        "loader = DataLoader(data, batch_size=32)\nhidden = torch.zeros(32, 8)\n", "32",
        ("train.py:2: hidden = torch.zeros(32, 8)",),
    ),
    "a variable that only the loader reads": (
        "bs = 32\nloader = DataLoader(data, batch_size=bs)\n", "bs", (),
    ),
    "a learning rate computed from it": (
        "bs = 32\nlr = 0.1 * bs / 256\nloader = DataLoader(data, batch_size=bs)\n", "bs",
        ("train.py:2: lr = 0.1 * bs / 256",),
    ),
    "an option under another object's name": (
        "def main(cfg):\n    loader = DataLoader(data, batch_size=cfg.batch)\n"
        "    return loader\nconfig = parse()\nlr = config.batch * 0.1\n", "cfg.batch",
        ("train.py:5: lr = config.batch * 0.1",),
    ),
    "a parameter may come from anywhere": (
        "def make(data, bs):\n    return DataLoader(data, batch_size=bs)\n"
        "lr = 0.1 * args.batch_size\nmake(data, args.batch_size)\n", "bs", None,
    ),
    "a name that the script never assigns": (
        "from settings import *\nloader = DataLoader(data, batch_size=BATCH)\n", "BATCH", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_other_readers_of_the_batch_size(case: str, tmp_path: Path) -> None:
    text, expression, expected = CASES[case]
    script = tmp_path / "train.py"
    script.write_text(text)
    assert batch_size_uses(script, expression) == expected


def uses(tmp_path: Path, source: str, expression: str) -> tuple[str, ...] | None:
    script = tmp_path / "train.py"
    script.write_text(source)
    return batch_size_uses(script, expression)


def test_other_uses_of_the_batch_size_are_found_with_their_lines(tmp_path: Path) -> None:
    source = "lr = 0.1 * args.bs\nloader = DataLoader(data, args.bs, drop_last=args.bs > 2)\n"
    assert uses(tmp_path, source, "args.bs") == ("train.py:1: lr = 0.1 * args.bs",)
    source = "loader = DataLoader(data, 32)\nx = 32\n"
    assert uses(tmp_path, source, "32") == ("train.py:2: x = 32",)


def test_a_batch_size_under_another_name_is_followed(tmp_path: Path) -> None:
    source = "bs = args.batch\nloader = DataLoader(data, bs)\nlr = 0.1 * args.batch / 256\n"
    assert uses(tmp_path, source, "bs") == ("train.py:3: lr = 0.1 * args.batch / 256",)
    plain = "bs = args.batch\nloader = DataLoader(data, bs)\n"
    assert uses(tmp_path, plain, "bs") == ()


def test_a_script_that_cannot_be_read_has_unknown_uses(tmp_path: Path) -> None:
    assert uses(tmp_path, "def broken(:\n", "bs") is None
    assert batch_size_uses(tmp_path / "missing.py", "bs") is None
