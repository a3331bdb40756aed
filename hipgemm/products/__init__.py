"""Matrix products: describe, choose, plan, run."""
