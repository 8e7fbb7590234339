"""The log of a RaftCluster over REST: its state, its entries, appends."""
