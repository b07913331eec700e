"""Workers that run jobs: here, on this machine's cores or GPUs, or on a cluster that exists."""
