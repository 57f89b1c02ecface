"""The structured allocator (KEP-4381): which devices the claims of a pod get on one node."""
