"""Binding conditions (KEP-5007) in the controller: the claims that wait for their devices, and the records of bound claims."""

from .bind_calls import BindCalls
from .binder import Binder
from .claims import ClaimWatch
from .records import BindingRecords

__all__ = ["BindCalls", "Binder", "BindingRecords", "ClaimWatch"]
