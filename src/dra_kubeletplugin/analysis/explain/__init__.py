"""Why a pod or a claim waits, and what would have to change."""
