"""What is added in a trial: its end, what is compared of its training, and turns of a live pair."""
