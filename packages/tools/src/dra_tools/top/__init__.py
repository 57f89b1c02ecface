"""The rows of ``dra top``: devices, their holders, and waiting pods."""
