"""From a traced program to a plan: rounds by priority, plans by hand, records."""
