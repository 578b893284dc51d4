"""The commands of `autoshard`, one file for each or for a few that go together."""
