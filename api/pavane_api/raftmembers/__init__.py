"""Members of a RaftCluster as they are at this moment, and who of them leads."""
