"""Shared by all commands: parsing, signals, exit codes, output, completion."""
