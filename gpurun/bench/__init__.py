"""`gpurun bench`: benchmarks of commits, compared, kept and searched."""
