"""Pure statistics of launches; the only user of scipy."""
