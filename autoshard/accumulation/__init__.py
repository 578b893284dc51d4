"""A step over microbatches: examples kept apart, sums of them added up in a loop."""
