"""Described hosts: a sysfs tree and device nodes made from YAML, which replace the machine's own."""
