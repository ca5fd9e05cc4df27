"""How a DataLoader's workers are started, kept and fed."""
