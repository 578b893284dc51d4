"""Ways to run each op: which mesh axes cut which factor of its rule."""
