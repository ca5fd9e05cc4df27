"""Every launch for measuring: alone, in ranks, or as one side of a live pair that takes turns."""
