"""Code that several subjects share when a knob is applied, in the user's process, after torch."""
