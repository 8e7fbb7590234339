"""Transactions of a WaltzCluster."""
