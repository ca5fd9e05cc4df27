"""Hidden data parallelism: a script that knows of one device, run as one rank of several."""
