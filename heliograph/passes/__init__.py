"""Passes, in rooms by subject; `compiler/pipeline.py` has their order.

A pass is a frozen dataclass whose fields are its options (`base.py`), in the file of its name.

* `tensors/`: simplify, expand, fuse linear maps, ReLUs as |x|, scaled outputs
* `ranges/`: calibration, margins, unit sizes, proved intervals, output ranges
* `polynomials/`: activations become polynomials or compositions of them, on [-1, 1]
* `degrees/`: the degree of each activation (OLA)
* `packing/`: tensors become slot vectors, maps become diagonals; `packing/products/` for products of encrypted matrices
* `levels/`: polynomials become products, levels and scales, rotation keys, chains, the final order
* `bootstraps/`: the placement of bootstraps, their pairs, their steps
"""
