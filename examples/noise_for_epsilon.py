"""How much noise does DP-SGD need for epsilon 2 in 60 epochs?

A training set of 60,000 records, batches of 256 on average (Poisson sampling), 60 epochs, delta 1e-5:

    python examples/noise_for_epsilon.py
    python examples/noise_for_epsilon.py --records 50000 --batch 1024 --epochs 30 --epsilon 4
"""

from __future__ import annotations

import argparse

from heliograph import dp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=256, help="the expected size of a batch")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args()

    p = options.batch / options.records
    steps = options.epochs * options.records // options.batch
    found = dp.noise_multiplier(options.epsilon, options.delta, p=p, steps=steps)
    bracket = found.bracket
    print(f"{options.epochs} epochs are {steps:,} steps with sampling probability {p:.6f}")
    print(f"noise multiplier {found.value:.4f}: epsilon is proved to lie in [{bracket.lower:.5f}, {bracket.upper:.5f}]")
    if found.tight:
        print("0.1 % less noise is proved to exceed the target")
    renyi = dp.epsilon_at(dp.SampledGaussian(p, found.value) * steps, options.delta, method="rdp")
    print(f"(Renyi accounting would claim epsilon {renyi.upper:.4f} for the same noise)")


if __name__ == "__main__":
    main()
