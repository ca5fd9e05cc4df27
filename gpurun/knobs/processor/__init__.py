"""On which cores a process runs, and with how many threads."""
