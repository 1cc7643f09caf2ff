"""Passes, in rooms named after what they work on; `compiler/pipeline.py` has their order.

A pass is a frozen dataclass whose fields are its options (`base.py`), in the file of its name.

* `tensors/`: simplify, expand, fuse linear maps, ReLUs as |x|, scaled outputs
* `ranges/`: calibration, margins, sizes of units, intervals that are proved, ranges of outputs
* `polynomials/`: activations become polynomials or compositions of them, on [-1, 1]
* `degrees/`: which degree each activation takes (OLA)
* `packing/`: tensors become slot vectors, maps become diagonals; `packing/products/` for products of encrypted matrices
* `levels/`: polynomials become products, levels and scales, rotation keys, chains, the final order
* `bootstraps/`: where bootstraps are placed, pairs of them, how they are written
"""
