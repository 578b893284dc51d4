"""Sweeps: many programs planned on many machines, one row of a table each, begun again at will."""
