"""Typed opaque parameters: the Config class, the validation and merging of entries, and the JSON Schema."""
