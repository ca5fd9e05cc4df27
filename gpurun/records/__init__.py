"""Typed records: what is written down, and the wire between the launcher and the user's process.

Standard library only, because the user's process imports this too. Units are in the field names;
a figure that was not measured is `None`.
"""
