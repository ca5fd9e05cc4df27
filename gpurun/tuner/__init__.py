"""`--optimize`: facts, candidates, trials, the proof, the loss guard and the ladder."""
