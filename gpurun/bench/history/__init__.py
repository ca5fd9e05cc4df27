"""What the records of a benchmark show over time."""
