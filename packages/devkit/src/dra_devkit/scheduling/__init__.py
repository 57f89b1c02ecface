"""A scheduler's decisions as pure functions: CEL, device allocation, and the scheduling framework."""
