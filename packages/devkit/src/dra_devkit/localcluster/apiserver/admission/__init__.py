"""Admission: built-in plugins, policies and webhooks. They change the object of a request, or reject the request."""

from .chain import Admission, AdmissionChain

__all__ = ["Admission", "AdmissionChain"]
