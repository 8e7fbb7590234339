"""SWIM: group membership."""
