"""The records of prepared claims on disk: reading, writing and repair."""
