"""The development kit for authors of DRA drivers: a local cluster, described hosts, pytest fixtures, and commands."""
