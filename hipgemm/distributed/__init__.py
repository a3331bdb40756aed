"""Arrays in parts on several devices or ranks, and their products."""
