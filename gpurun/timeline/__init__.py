"""The one model that every profiling source fills, and the importers that fill it."""
