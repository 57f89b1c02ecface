"""The processes that run in a cluster: node plugin, controller, webhook."""
