"""Plans compiled ahead of time, for devices that need not be present."""
