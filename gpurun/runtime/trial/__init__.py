"""The additions of a trial: its stop, its audits for the loss guard, the turns of a live pair."""
