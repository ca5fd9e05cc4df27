"""Diagnoses: what is known of a run, thresholds, and the ranking; `kinds/` has the bottlenecks."""
