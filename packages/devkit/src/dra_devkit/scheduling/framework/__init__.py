"""One scheduling cycle on a snapshot of the cluster: filters, devices and scores for one pod. No module here does I/O."""
