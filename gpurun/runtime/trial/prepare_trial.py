"""Prepare a trial before torch is imported."""

from __future__ import annotations

from gpurun.records.spec import TrialSpec
from gpurun.runtime.core import hub_uploads, seeds
from gpurun.runtime.observe import argparse_options, import_log
from gpurun.runtime.trial import late_dynamo


def prepare(spec: TrialSpec) -> None:
    """Seed the script, watch its command line and imports, block its uploads, start it sooner."""
    seeds.seed_everything(spec.seed, spec.seed_offset)
    argparse_options.install()
    hub_uploads.block_uploads()
    import_log.begin()
    late_dynamo.install()
