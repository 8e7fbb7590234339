"""The pavane command."""
