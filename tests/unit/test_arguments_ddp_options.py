"""`--ddp-options`: read as they are named in torch, and written back as they are typed."""

from __future__ import annotations

import pytest

from gpurun.arguments.ddp_options import ddp_options_of, flag_of
from gpurun.arguments.main_flags import parse
from gpurun.errors import GpurunError
from gpurun.records.spec import Setting


def test_options_are_read_by_name_and_typed_back() -> None:
    text = "static_graph, bucket_cap_mb=100,compression=bf16,gradient_as_bucket_view=false"
    found = ddp_options_of("ddp-options", text)
    assert {(x.knob, x.value) for x in found} == {
        ("static_graph", True),
        ("bucket_cap_mb", 100),
        ("compression", "bf16"),
        ("gradient_as_bucket_view", False),
    }
    assert ddp_options_of("ddp-options", flag_of(found)) == found
    assert parse(["--ddp", "train.py"], {}).ddp_options == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "'fast' is none of gradient_as_bucket_view, static_graph"),
        ("bucket_cap_mb=big", "bucket_cap_mb 'big' is no number of MiB"),
        ("bucket_cap_mb=0", "is no number of MiB"),
        ("compression=int8", "compression 'int8' is none of bf16, fp16"),
        ("static_graph=maybe", "static_graph 'maybe' is no switch"),
        ("", "'' is none of"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(GpurunError) as raised:
        ddp_options_of("ddp-options", text)
    assert said in raised.value.what


def test_they_are_for_ranks_of_ours() -> None:
    words = ["--ddp-options", "static_graph", "train.py"]
    assert parse(["--ddp", *words], {}).ddp_options == (Setting("static_graph", True),)
    assert parse(["--scale", "1,2", *words], {}).ddp_options == (Setting("static_graph", True),)
    with pytest.raises(GpurunError, match="needs --ddp or --scale"):
        parse(words, {})
