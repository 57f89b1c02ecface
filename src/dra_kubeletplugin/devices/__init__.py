"""The devices of one driver: discovery, validation, health, and their publication as ResourceSlices."""
