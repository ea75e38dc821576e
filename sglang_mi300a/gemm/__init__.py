"""Which kernel or library solution serves a dense matrix product."""
