"""Custom resources over REST, the same for each kind: list, watch, get, put, patch, delete."""
