"""The trees that are launched: commits checked out, set up, and proven to run their own code."""
