"""Kubernetes DRA driver gpu.dra-kubeletplugin.dev."""
