"""The operator of Pavane: custom resources, rendering, staged rollout."""
