"""Less memory for time: checkpointing, offload, slices of a batch, allocators."""
