"""Figures of a full run alone: losses that were not finite, throughput that drifts."""
