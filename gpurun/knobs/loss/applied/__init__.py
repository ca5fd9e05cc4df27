"""The compiled loss, in the user's process."""
