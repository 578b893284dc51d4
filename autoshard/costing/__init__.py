"""Seconds and bytes of candidates and reshards: the only door to `cost_models`."""
