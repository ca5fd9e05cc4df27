"""The group of a kernel by its name, however long that is."""

from __future__ import annotations

import time

from gpurun.timeline.kernel_groups import kernel_group, uses_tensor_cores
from gpurun.timeline.model import Group


def test_a_name_that_repeats_itself_for_megabytes_is_looked_at_by_its_beginning() -> None:
    """Ten times as much took a hundred times as long: 100 kB ten seconds."""
    taken = []
    for count in (1_000, 100_000):
        began = time.process_time()
        name = "sm90_xmma_gemm_" * count
        assert kernel_group(name) is Group.MATMUL
        assert uses_tensor_cores(name) is None
        taken.append(time.process_time() - began)
    assert taken[1] < 100 * taken[0] + 1
