"""The API server's validation of resource.k8s.io objects, with its own error texts."""
