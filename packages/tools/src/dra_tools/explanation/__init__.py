"""Explains why a pod or a claim waits, and which changes would help."""
