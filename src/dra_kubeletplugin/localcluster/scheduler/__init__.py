"""The scheduler: a queue of pods, a scheduling cycle for each, writes of claims and bindings."""
