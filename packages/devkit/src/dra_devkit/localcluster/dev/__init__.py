"""``dra dev``: a local cluster with drivers as separate processes, described hosts, and commands that simulate machine faults."""
