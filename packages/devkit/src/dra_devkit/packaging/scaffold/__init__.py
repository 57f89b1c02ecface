"""Creates a driver's package from templates, for `dra new`."""
