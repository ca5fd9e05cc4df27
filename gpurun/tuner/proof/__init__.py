"""The proof: pairs of launches of the finalists and of the script as it is, and the decision."""
