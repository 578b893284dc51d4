"""The compiler in the loop: plans are compiled, what differs is learnt, and planned again."""
