"""How an expert layer runs."""
