"""Described hosts: a sysfs tree and device nodes that are built from YAML and replace those of the machine.

Read the modules in the order of the work:

1. ``schema.py`` documents the format, and reads a file into the structs of ``model.py``.
2. ``topology.py`` adds the defaults that depend on other functions, and checks the functions together.
3. ``described.py`` finds the file, and builds the tree: first the folders, drivers and NUMA nodes, then each function.
4. ``kernel.py`` plugs a function in and binds its driver. Later, it imitates the kernel's effects of writes to the tree.
5. ``tree.py`` writes each file, link and device node.
6. Of the framework's `host/`, ``described_events.py`` is the file of events, and ``described_host.py`` names the file that distinguishes
   the tree from a real sysfs.
"""
