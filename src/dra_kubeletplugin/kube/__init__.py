"""Client of the API server: configuration, transport, requests, list and watch."""

from .client import KubeClient
from .config import ApiConfig, load_config
from .reflector import Reflector
from .resource import Resource
from .tls import Tls, TlsFiles

__all__ = ["ApiConfig", "KubeClient", "Reflector", "Resource", "Tls", "TlsFiles", "load_config"]
