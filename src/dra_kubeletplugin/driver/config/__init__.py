"""Typed opaque parameters: the Config class, the choice and validation of the entries for a request, and JSON Schema."""
