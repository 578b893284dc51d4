"""Optimized HLO as compilers print it, read back: ops, collectives, loops, memory."""
