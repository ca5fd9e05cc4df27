"""How gpurun comes into a process, and how the parts of a run are put together there."""
