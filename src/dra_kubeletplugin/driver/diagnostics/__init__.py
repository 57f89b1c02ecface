"""Error messages for driver authors: the place in the driver's source and the nearest known name."""
