"""The gradient probe: one process that measures how the loss of a batch is made of its samples'."""
