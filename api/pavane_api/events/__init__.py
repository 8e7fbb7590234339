"""What Kubernetes noted about a resource and its pods."""
