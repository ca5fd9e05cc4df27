"""Checks of this machine: what is installed, permitted or missing."""
