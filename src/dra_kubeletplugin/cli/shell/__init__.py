"""Modules that all commands use: parsing, signals, exit codes, output, completion."""
