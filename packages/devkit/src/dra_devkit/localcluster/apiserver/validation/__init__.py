"""Defaulting and validation of the server's kinds."""
