"""From many tuned problems to a small table, or a rule, with a bounded loss."""
