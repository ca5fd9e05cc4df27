"""Gather the gradients of several batches, in the user's process."""
