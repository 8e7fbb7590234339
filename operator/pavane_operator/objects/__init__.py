"""Objects, and parts of pods, that all kinds share; pure functions of the spec and of what a kind says of itself."""
