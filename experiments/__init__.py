"""Recipes, real models and benchmarks that measure autoshard through its public names."""
