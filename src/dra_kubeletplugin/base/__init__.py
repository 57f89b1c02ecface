"""What every other package stands on: text, files, locks, settings, telemetry, YAML and a small HTTP server. Knows no Kubernetes object."""
