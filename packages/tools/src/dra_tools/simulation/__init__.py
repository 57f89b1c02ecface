"""Simulates whether and where pods would fit."""
