"""The local cluster: API server, controllers, scheduler, kubelet and runtime in one process."""
