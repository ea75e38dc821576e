"""Whether the output is still right: references, and counts of agreement with them."""
