"""The structured allocator (KEP-4381): chooses the devices for the claims of a pod on one node."""
