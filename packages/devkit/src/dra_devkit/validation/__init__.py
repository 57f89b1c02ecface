"""The API server's validation of whole objects of resource.k8s.io, with its own error texts."""
