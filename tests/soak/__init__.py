"""Nets that run for hours: programs made at random, compared with themselves on one device."""
