"""Launches for measuring: two processes live beside each other that take turns."""
