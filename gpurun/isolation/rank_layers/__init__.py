"""Ranks but the first: each writes into a layer of its own and sees the files of rank 0."""
