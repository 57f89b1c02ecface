"""What a driver is shipped as: its manifests, and the scaffold of a new driver's package."""
