"""`triton.autotune`, taken over: its arguments, its object, its hooks, pruning and timing, over a tuned kernel."""
