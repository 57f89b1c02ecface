"""Typed opaque parameters: the Config class, which entries apply to a request, their JSON Schema."""
