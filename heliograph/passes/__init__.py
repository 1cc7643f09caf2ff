"""Passes, and what they share.

A pass is a frozen dataclass whose fields are its options (`base.py`); `compiler/pipeline.py` has their order. Each is in
the file of its name:

* tensor stage: `simplify`, `expand`, `fuse_linear`, `calibrate` (an analysis: it gives a table), `approximate`
* polynomial stage: `fold_scaling`, `pack`
* packed stage: `fit_slots`, `clean_slots` (an analysis), `place_bootstraps`, `pair_bootstraps`, `lower_polynomials`,
  `plan_levels`
* managed stage: `select_keys`, `schedule`

The other files are parts of passes:

* of `approximate`: `lower_functions` and `lower_steps` (compositions of polynomials), `margins` and `units` (ranges),
  `range_table` (what the report says of a range), `intervals` (what is proved of values)
* of `pack`: `choose_layouts`, `map_plans` (how a map would be evaluated), `map_offsets` (its diagonals), `bsgs` (its
  rotations)
* of `fit_slots`: `slot_intervals`
"""
