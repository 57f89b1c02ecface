"""What a question about a cluster did not evaluate: kinds, objects, and fields that a newer Kubernetes release may read."""
