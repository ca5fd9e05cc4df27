"""Lower precision where it is safe: autocast, TF32, and the loss scale of float16."""
