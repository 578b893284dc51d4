"""A plan: the answer in the user's names, its file, its differences from another."""
