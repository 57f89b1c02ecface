"""The container runtime's side: CDI devices injected into an OCI spec, which runc runs for real or nobody does."""
