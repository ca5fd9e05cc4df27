"""Two trees launched in turn until a verdict stands."""
