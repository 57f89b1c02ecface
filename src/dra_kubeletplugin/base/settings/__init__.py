"""All options of the plugin, with environment variable, flag and default."""

from .node import DNS_SUBDOMAIN, HEALTH_TIMEOUT, HEALTHY_AFTER, MAX_DRIVER_NAME, UNHEALTHY_AFTER, Settings
from .roles import ControllerSettings, WebhookSettings

__all__ = [
    "DNS_SUBDOMAIN",
    "HEALTHY_AFTER",
    "HEALTH_TIMEOUT",
    "MAX_DRIVER_NAME",
    "UNHEALTHY_AFTER",
    "ControllerSettings",
    "Settings",
    "WebhookSettings",
]
