"""What is asked of a plan, in the terms of its graph and its mesh."""
