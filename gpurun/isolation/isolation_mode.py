"""The three ways in which a trial can be kept from changing anything."""

from __future__ import annotations

import enum


class Mode(enum.Enum):
    """OVERLAY: every write is seen by the script and thrown away. LANDLOCK: the script works on a
    copy of its folder and writes elsewhere fail. IN_PLACE: no protection, by the user's consent.
    """

    OVERLAY = "overlay"
    LANDLOCK = "landlock"
    IN_PLACE = "in place"
