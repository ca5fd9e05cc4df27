"""The loss of half-precision outputs, computed in fused kernels."""
