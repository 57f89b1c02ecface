"""The scheduler of the local cluster: queues pods, selects a node for each pod, and writes claims and bindings."""
