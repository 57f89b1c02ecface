"""Binding conditions (KEP-5007) in the controller: which claims wait for their devices, and what was done for them."""

from .binder import Binder
from .claims import ClaimWatch
from .records import BindingRecords

__all__ = ["Binder", "BindingRecords", "ClaimWatch"]
