"""Matrix products: description, kernel selection, plans, execution."""
