"""What is seen of the script as it runs: steps, loaders, optimizers, root modules, traits."""
