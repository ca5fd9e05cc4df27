"""The end of a comparison: its documents, and the line that pipelines read."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.arguments.options import BenchOptions
from gpurun.bench.compare.comparison_document import together
from gpurun.bench.tracker_formats import tracked
from gpurun.commands.bench.bench_outputs import emit_exports, emit_markdown
from gpurun.commands.verdict_line import print_verdict
from gpurun.commands.written_outputs import emit_json
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import to_json
from gpurun.report.comparison_text import comparison_lines, comparison_markdown


def conclude(documents: Sequence[Comparison], options: BenchOptions) -> int:
    """Write what was asked for, and the closing line; the exit code."""
    found = together(documents)
    code = found.exit_code  # a signal after the last comparison changes nothing that is known
    emit_json(options.json, to_json(found))
    emit_markdown(options.markdown, comparison_markdown(found))
    emit_exports(options.exports, tracked(found))
    differs = None if found.training_differs is None else str(found.training_differs).lower()
    if differs is None and options.fail_on_training_change:
        differs = "unknown"
    grounds = {"pairs": found.pairs, "records": found.baseline_records}
    print_verdict(found.verdict, code, slowdown=found.slowdown, training_differs=differs, **grounds)
    return code


def shown(found: Comparison, options: BenchOptions) -> list[str]:
    """The lines of one benchmark for the terminal."""
    return comparison_lines(found) if found.verdict == "failed" or not options.quiet else []
