"""Recompute, slice and offload activations, in the user's process."""
