"""How busy the parts of a GPU are: NVML's GPM counters, or DCGM for GPUs before Hopper."""
