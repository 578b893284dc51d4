"""A problem for `solvers` from candidates and costs, and the way back from its answer."""
