"""SQL kept up to date over the log: scripts, plans, engines, ticks, sources, chains (docs/specs/compute.md 12-16)."""
