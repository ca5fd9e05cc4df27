"""Diagnoses: one file a kind of bottleneck; `ranked_findings` finds them by walking this folder."""
