"""The only importer of the Kubernetes client."""
