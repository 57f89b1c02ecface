"""What a driver is shipped as: manifests and a package's scaffold."""
