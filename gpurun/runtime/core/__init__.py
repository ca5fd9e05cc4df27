"""The base of the runtime: the recorder, patches and post-import hooks."""
