"""Batches of another size, and several batches in one step."""
