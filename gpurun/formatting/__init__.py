"""Figures, settings and foreign text as short text."""
