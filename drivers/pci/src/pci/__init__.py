"""Kubernetes DRA driver pci.dra-kubeletplugin.dev."""
