"""The views of ComputeClusters: lists, queries, changes as they come, rows that could not be read."""
