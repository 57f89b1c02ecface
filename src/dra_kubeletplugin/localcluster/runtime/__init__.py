"""The container runtime: injects CDI devices into an OCI spec, and runs containers with runc or simulates them."""
