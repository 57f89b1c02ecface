"""The container runtimes: they inject CDI devices into an OCI spec, and run containers with runc or simulate them."""
