"""The version of gpurun."""

VERSION = "0.1.0"
