"""Schemas of API objects in Kubernetes' wire formats: protobuf, OpenAPI, and the field ownership of server-side apply."""
