"""CKKS without a library: security, primes, rings, costs, chains, keys, bootstraps, noise."""
