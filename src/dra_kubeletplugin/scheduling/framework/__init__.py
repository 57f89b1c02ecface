"""One look for a node for one pod, on the state of one moment: filters, devices, scores. Nothing here talks to anybody."""
