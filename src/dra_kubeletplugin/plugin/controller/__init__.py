"""The controller role: pools without a node, and binding conditions."""
