"""Keys, the tree and leases of a RaftCluster: read, write, watch."""
