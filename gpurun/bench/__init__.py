"""Benchmarks of launches: is this tree slower than another one?"""
