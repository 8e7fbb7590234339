"""Stateful coordination services: protocols, staged life, and the floors they stand on."""
