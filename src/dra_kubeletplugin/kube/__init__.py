"""The API server, from a client's side: configuration, transport, requests, list and watch."""

from .client import KubeClient, Resource
from .config import ApiConfig, load_config
from .reflector import Reflector

__all__ = ["ApiConfig", "KubeClient", "Reflector", "Resource", "load_config"]
