"""Running trainings and the machine as they are now, for the monitor and the exporters."""
