"""The files to deploy a driver: rendered manifests, and the scaffold of a new driver's package."""
