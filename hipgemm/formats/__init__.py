"""Element formats, scale rules, ScaledArray, packing, groups of rows."""
