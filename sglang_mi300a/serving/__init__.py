"""Which flags and environment a preset means."""
