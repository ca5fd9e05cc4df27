"""The gradient probe, from the launcher's side: launch it, judge what it saw, keep the result."""
