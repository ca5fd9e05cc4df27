"""What is shown: on stderr only, with rich on a terminal and as plain lines elsewhere.

Nothing here imports rich at its top; a launch whose stderr is no terminal never imports it.
"""
