"""The kinds of bottleneck, one file each."""
