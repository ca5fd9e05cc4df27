"""Who is faster: pairs of launches, live or in turn, their estimate, and the answer."""
