"""What of the Helm charts is generated: values with their schema, and the rights that the components need."""
