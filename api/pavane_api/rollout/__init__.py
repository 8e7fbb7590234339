"""A user's decisions about an attempt, as sub-resources of the resource."""
