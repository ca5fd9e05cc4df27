"""Figures of a full run alone: losses not finite, throughput that drifts, memory that grows."""
