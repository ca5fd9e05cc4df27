"""Copies between host and device that do not hold up either."""
