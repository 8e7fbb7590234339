"""Pods of a resource, each with its stage, by its own words."""
