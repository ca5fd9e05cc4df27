"""The graph of the profiled steps, its replay, and changes of it."""
