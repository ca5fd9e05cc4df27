"""All flags, the options made of them, and gpurun.toml."""
