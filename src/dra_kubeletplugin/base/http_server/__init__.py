"""A small HTTP/1.1 server for probes, metrics, webhooks and the local API server.

``server.py`` accepts a client. ``connection.py`` reads its requests, calls the handler within the limits of ``limits.py``, and sends the
responses. For probes, the handler is ``Probes`` in ``plugin/lifecycle.py``.
"""
