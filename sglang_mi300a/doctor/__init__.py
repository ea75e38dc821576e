"""Room ``doctor``: whether it will work on this machine. Facts are gathered, findings judged."""
