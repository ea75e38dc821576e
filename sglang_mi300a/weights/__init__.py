"""How weights reach a device once: sharded offline, checked, read in bounded pieces."""
