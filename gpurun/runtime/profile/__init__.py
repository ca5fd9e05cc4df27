"""Profilers inside the user's process, confined to a window of steady steps."""
