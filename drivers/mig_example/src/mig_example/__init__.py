"""Kubernetes DRA driver mig.example.com."""
