"""What lives in the user's process. Imports the standard library, torch, `gpurun.records` only."""
