"""A driver's package from templates: what `dra new` makes."""
