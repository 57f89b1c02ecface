"""The scheduler's loop: a queue of pods, a cycle for each, claims written and pods bound."""
