"""The entry of gpurun into a process, and the assembly of a run's parts there."""
