"""Autocast and the scale of the loss, in the user's process."""
