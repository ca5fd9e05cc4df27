"""Half-precision logits and their loss, in the user's process."""
