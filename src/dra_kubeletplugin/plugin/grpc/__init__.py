"""The plugin's connection to the kubelet: sockets, registration, node service and health stream."""

import os

# With its own fork handlers, gRPC starts its threads again in a process that a driver forks, which then crashes at random
# (gRPC 1.85: SIGSEGV, SIGABRT). gRPC reads this variable when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
