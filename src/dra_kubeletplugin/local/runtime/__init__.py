"""The container runtime's side: resolve CDI ids, change an OCI spec, and run a container where podman is installed."""
