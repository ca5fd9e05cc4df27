"""What every other room of the runtime stands on: the recorder, patches, hooks on imports."""
