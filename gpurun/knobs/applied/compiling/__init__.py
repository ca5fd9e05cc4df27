"""Compile the root modules, in the user's process."""
