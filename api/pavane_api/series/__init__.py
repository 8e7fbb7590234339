"""A day of a few numbers per resource, from the metrics of its pods."""
