"""What a connection to a replica begins with, and what of a replica's former state stays."""
