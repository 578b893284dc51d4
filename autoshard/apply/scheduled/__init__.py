"""Schedules made into functions that run: `shard_map` with the collectives a schedule says."""
