"""One device's program as the compiler makes it, and the estimate of what it takes."""
