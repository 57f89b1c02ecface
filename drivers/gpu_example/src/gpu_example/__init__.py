"""Kubernetes DRA driver gpu.example.com."""
