"""The scheduler: which devices a claim gets, and on which node a pod goes."""
