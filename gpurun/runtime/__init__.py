"""The code in the user's process. It imports the standard library, torch and `gpurun.records`."""
