"""A plan beside what a compiler made of it, or what propagation alone would make."""
