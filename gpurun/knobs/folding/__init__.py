"""Batch normalisations folded into the layers before them while a model evaluates."""
