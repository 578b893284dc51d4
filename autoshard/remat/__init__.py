"""Residuals of a traced step: found after autodiff, kept or computed again in the backward pass."""
