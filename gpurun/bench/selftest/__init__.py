"""The gate tried on slow-downs that are known to be there, and on none."""
