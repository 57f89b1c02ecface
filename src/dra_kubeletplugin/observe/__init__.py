"""Logs, metrics and probes."""
