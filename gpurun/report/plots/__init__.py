"""Pictures (PNG): the only user of matplotlib."""
