"""Drivers for tests of the conformance suite: a complete driver on plain grpcio, and one with the framework, each with chosen bugs."""
