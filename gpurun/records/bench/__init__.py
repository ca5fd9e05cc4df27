"""Records of benchmarks, comparisons, searches for a culprit, histories and selftests."""
