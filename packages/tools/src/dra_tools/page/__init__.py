"""The page of `dra dev`, with the content of `dra top`."""
