"""The search for settings: trials of single changes and of several at once; nothing is claimed."""
