"""The version of autoshard, in one place."""

VERSION = "0.1.0"
