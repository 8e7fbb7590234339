"""RaftClusters over REST: list, watch, get, put, patch, delete."""
