"""Does a script for one device train alike on ranks? Two trials, their records, one verdict."""
