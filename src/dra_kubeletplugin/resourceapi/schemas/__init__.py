"""The types of the kinds that are served: what they contain, how they are read, merged and published."""
