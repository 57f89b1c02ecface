"""YAML files with many documents, as a stream, and manifests of Kubernetes objects."""
