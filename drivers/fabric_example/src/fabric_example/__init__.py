"""Kubernetes DRA driver fabric.dra-kubeletplugin.dev."""
