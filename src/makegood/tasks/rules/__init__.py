"""Pure rules: decisions as plain functions of values, without I/O, clocks or randomness of their own."""
