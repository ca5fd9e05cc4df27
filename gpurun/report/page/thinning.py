"""Long series cut down to some hundreds of points that still show every peak."""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[float, float]
MOST_POINTS = 400
"""Points of a thinned series: a picture is not wider in pixels."""


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most `most` of the points, in their order.

    First and last point stay; of each stretch between them the lowest and the highest stay.
    """
    if len(points) <= most:
        return tuple(points)
    inner = points[1:-1]
    stretches = max((most - 2) // 2, 1)
    kept = [points[0]]
    for number in range(stretches):
        begin = number * len(inner) // stretches
        end = (number + 1) * len(inner) // stretches
        stretch = range(begin, end)
        lowest = min(stretch, key=lambda i: inner[i][1])
        highest = max(stretch, key=lambda i: inner[i][1])
        kept += [inner[i] for i in sorted({lowest, highest})]
    return (*kept, points[-1])
