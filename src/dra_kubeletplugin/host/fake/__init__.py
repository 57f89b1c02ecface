"""Described hosts: a sysfs tree and device nodes that are built from YAML and replace those of the machine."""
