"""A function of one's own, in one file: `heliograph approx bump --from examples/register_function.py --degree 15`."""

import numpy as np

from heliograph.approx import register_function

# The largest slope of exp(-x^2) is sqrt(2 / e); with it the errors of its polynomials are proved, not seen.
bump = register_function("bump", lambda x: np.exp(-x * x), low=-4.0, high=4.0, slope=0.858)

if __name__ == "__main__":
    from heliograph.approx.fits.fit import fit
    from heliograph.approx.proofs.fit_proof import largest_error

    for degree in (8, 16, 24):
        made = fit(bump.evaluate, -4.0, 4.0, degree)
        error, proved = largest_error(made.coefficients, -4.0, 4.0, bump)
        print(f"degree {degree}: largest error {error:.2e}, {'proved' if proved else 'measured'}")
