"""Collectives beside computing: what a plan waits for, and what its prices leave out."""
