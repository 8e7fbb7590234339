"""Members of a SwimGroup as one of its pods sees them at this moment."""
