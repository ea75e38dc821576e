"""What each pool may take of the one shared HBM."""
