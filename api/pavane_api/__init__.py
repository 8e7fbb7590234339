"""The control plane: REST API and trace store."""
