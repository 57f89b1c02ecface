"""The types of the served kinds: their fields, and how they are decoded, merged and published as OpenAPI."""
