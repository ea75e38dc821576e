"""What each instruction must give, in Python integers and exact fractions: no code of ``core/``."""
