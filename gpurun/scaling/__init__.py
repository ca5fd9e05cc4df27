"""`--scale`: how a script's throughput grows with the number of devices, and what is lost where."""
