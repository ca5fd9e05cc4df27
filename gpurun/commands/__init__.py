"""One file a command. Each takes its options and returns the exit code."""
