"""Typed opaque parameters: the Config class, the choice between the entries of class and claim, and their validation."""
