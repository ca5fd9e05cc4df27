"""Knobs for a DataLoader's workers: their start, their lifetime and their batches."""
