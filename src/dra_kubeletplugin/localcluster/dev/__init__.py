"""``dra dev``: a local cluster with drivers as processes of their own, described hosts, and verbs for what happens to machines."""
