"""The history of a benchmark: trends, and the records that stand for a baseline."""
