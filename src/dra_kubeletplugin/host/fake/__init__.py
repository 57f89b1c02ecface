"""Described hosts: a sysfs tree and device nodes made from YAML, in place of the machine's own."""
