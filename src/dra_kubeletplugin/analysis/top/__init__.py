"""Which devices exist, who holds them, which pods wait."""
