"""Commands of the pavane program, imported when they are called."""
