"""Less memory for time: checkpointing, offload, allocators."""
