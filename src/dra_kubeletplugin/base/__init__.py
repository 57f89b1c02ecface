"""Basic modules for all other packages: text, files, locks, settings, telemetry, YAML and an HTTP server. Knows no Kubernetes objects."""
