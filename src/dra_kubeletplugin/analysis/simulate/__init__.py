"""Whether and where pods would fit."""
