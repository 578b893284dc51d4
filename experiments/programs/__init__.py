"""Programs of other people's packages, planned as a new user would and run on eight devices."""
