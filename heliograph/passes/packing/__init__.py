"""From tensors to slots: layouts, diagonals, baby and giant steps."""
