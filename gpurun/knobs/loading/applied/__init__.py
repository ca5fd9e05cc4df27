"""Workers that last and shared memory that is used again, in the user's process."""
