"""The search for the commit that made a benchmark slower."""
