"""The launch that stands for the folder of a tuning or of a scaling, which trains in others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import count
from gpurun.records.scaling import ScalingReport
from gpurun.report.page.run_contents import Examine, RunContents, read_contents

EVENTS = "events-*.jsonl"


def launch_within(folder: Path, examine: Examine) -> tuple[Path, tuple[str, ...]]:
    """A launch inside, and notes that say which it is and name others.

    Of a tuning the one with the settings that were kept, of a scaling the last of the largest
    count, of one that did not come to its end the newest. `GpurunError` where there is none.
    """
    try:
        contents = read_contents(folder, examine)
    except GpurunError:
        contents = RunContents(folder.name)
    if contents.recordings:
        last = contents.recordings[-1]
        kept = contents.tuning.chosen if contents.tuning and last.label == "after" else None
        what = "the script as it is" if kept is None else f"kept: {knobs_text(kept.knobs)}"
        return folder / last.folder, (f"this is {last.folder} of the tuning, {what}",)
    counts = dict(_by_count(folder, contents.scaling)) if contents.scaling is not None else {}
    if counts:
        most = max(counts)
        told = {n: f"the scaling's last launch of {count(n, 'rank')}" for n in counts}
        others = (f"{told[n]}: {path}" for n, path in counts.items() if n != most)
        return counts[most], (f"this is {counts[most].name}, {told[most]}", *others)
    events = list(folder.glob(f"*/*/{EVENTS}"))
    if not events:
        raise GpurunError(f"{folder} holds no record of a run", "name a folder below .gpurun/runs")
    newest = max(events, key=lambda path: path.stat().st_mtime_ns).parent
    return newest, (f"this is {newest.relative_to(folder)}, the newest launch there",)


def _by_count(folder: Path, scaling: ScalingReport) -> Iterator[tuple[int, Path]]:
    """The last usable launch of each count of devices."""
    for point in scaling.points:
        usable = [each for each in point.launches if each.exchange and each.error is None]
        launch = folder / "launches" / Path(usable[-1].run_dir).name if usable else folder
        if any(launch.glob(EVENTS)):
            yield point.gpus, launch
