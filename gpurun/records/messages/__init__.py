"""Messages of a process beside its main events: turns, layers, outputs, gradients."""
