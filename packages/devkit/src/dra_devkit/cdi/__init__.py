"""Reads CDI specs as container runtimes do."""
