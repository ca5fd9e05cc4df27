"""torch.compile, and what is changed in graphs before it."""
