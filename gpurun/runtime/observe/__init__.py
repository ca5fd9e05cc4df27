"""Observation of any script: steps, loaders, optimizers, root modules, traits."""
