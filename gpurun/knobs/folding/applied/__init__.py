"""Fold normalisations while a model evaluates, in the user's process."""
