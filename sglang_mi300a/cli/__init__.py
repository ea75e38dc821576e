"""Commands, and what joins rooms."""
