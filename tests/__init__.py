"""Tests of gpurun."""
