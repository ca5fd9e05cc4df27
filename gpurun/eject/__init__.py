"""Tuned settings written into the user's own source, as a patch that needs no gpurun."""
