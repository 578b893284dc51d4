"""Plans kept in a folder by content: the same call in the next job takes the time of a trace."""
