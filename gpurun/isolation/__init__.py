"""Trials change nothing: overlay mounts in a namespace, Landlock with a copied folder, or in place.

`box.py` is the door. A `Box` is three processes: the *warden* (`warden.py`) is started by the
launcher, outlives nothing it guards and ends everything when told to or when the launcher dies; the
*shim* (`shim.py`) builds the view of the file system and reaps; below it runs the user's script.
"""
