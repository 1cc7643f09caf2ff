"""Passes, and what they share.

A pass is a frozen dataclass whose fields are its options (`base.py`); `compiler/pipeline.py` has their order. Each is in
the file of its name:

* tensor stage: `simplify`, `expand`, `compose_relu`, `fuse_linear`, `calibrate` (an analysis: it gives a table),
  `approximate`
* polynomial stage: `fold_scaling`, `merge_activations`, `pack`
* packed stage: `fit_slots`, `clean_slots` (an analysis), `place_bootstraps`, `pair_bootstraps`, `lower_polynomials`,
  `plan_levels`
* managed stage: `lower_bootstraps`, `select_keys`, `place_chains`, `schedule`
* facts about the program, which leave its operations as they are: `output_ranges`, `reside`

The other files are parts of passes:

* of `approximate`: `lower_functions` and `lower_steps` (compositions of polynomials), `margins` and `units` (ranges),
  `range_table` (what the report says of a range), `intervals` (what is proved of values)
* of `fold_scaling`: `squares`
* of `pack`: `choose_layouts`, `map_plans` (how a map would be evaluated), `map_offsets` (its diagonals), `bsgs` (its
  rotations); for products of two encrypted matrices `choose_products`, `count_products`, `matrix_products`,
  `block_products`, `product_writer` and `copy_operands`
* of `fit_slots`: `slot_intervals`
* of `place_bootstraps`: `placement` (the search)

`allocate_degrees` and `impacts` choose degrees before any pass runs (`compiler/planning/allocation.py`).
"""
