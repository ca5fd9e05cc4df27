"""Text for people, on stderr: drawn by rich on a terminal, plain lines elsewhere.

Nothing here imports rich at its top; a launch whose stderr is no terminal never imports it.
"""
