"""Described hosts: a sysfs tree and device nodes that are built from YAML and replace those of the machine.

Read the modules in the order of the work:

1. ``schema.py`` documents the format, and reads a file into the structs of ``model.py``.
2. ``topology.py`` adds the defaults that depend on other functions, and checks the functions together.
3. ``sysfs.py`` writes the tree, and later imitates the kernel's effects of writes to it.
4. ``uevents.py`` is the file of events, and ``marker.py`` the file that distinguishes the tree from a real sysfs.
"""
