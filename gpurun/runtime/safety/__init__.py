"""What a full run does when it goes wrong: losses that are not finite, memory, its end."""
