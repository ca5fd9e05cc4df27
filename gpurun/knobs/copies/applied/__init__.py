"""Move batches and skip waits for the GPU, in the user's process."""
