"""A small HTTP/1.1 server for probes, metrics, webhooks and the local API server."""
