"""All options of the plugin, with environment variable, flag and default."""

from .loading import load
from .node import DNS_SUBDOMAIN, HEALTH_TIMEOUT, MAX_DRIVER_NAME, Settings
from .roles import ControllerSettings, WebhookSettings

__all__ = [
    "DNS_SUBDOMAIN",
    "HEALTH_TIMEOUT",
    "MAX_DRIVER_NAME",
    "ControllerSettings",
    "Settings",
    "WebhookSettings",
    "load",
]
