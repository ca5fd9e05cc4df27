"""Capture modules that hold attention, and rewrite their graphs, in the user's process."""
