"""Admission: what others than the kind's own rules change in a request's object, or refuse it for."""

from .chain import Admission, AdmissionChain

__all__ = ["Admission", "AdmissionChain"]
