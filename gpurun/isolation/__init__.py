"""Trials change nothing: overlay mounts in a namespace, Landlock with a copied folder, or in place.

A `Sandbox` (`sandbox.py`) is three processes. The launcher starts the *supervisor*
(`sandbox_supervisor.py`), which ends everything when asked or when the launcher dies. Below it the
*init process* (`sandbox_init.py`) builds the view of the file system and reaps. Below that runs the
user's script.
"""
