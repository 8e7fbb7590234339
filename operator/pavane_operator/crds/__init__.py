"""Pydantic models of the custom resources and the CRD generator."""
