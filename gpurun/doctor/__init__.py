"""What is installed, permitted and missing here: pure functions from what was seen to checks."""
