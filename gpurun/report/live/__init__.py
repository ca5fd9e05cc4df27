"""Figures of running trainings for people and other tools: a table, Prometheus, TensorBoard."""
