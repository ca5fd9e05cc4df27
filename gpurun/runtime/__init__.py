"""What lives in the user's process. Imports the standard library, torch and `gpurun.records` only."""
