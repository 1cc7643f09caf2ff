"""TenSEAL (Microsoft SEAL): vectors with its own products by matrices, as its tutorials use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tenseal
from job import Missing, evaluate, main, secret, tell, timed

# By levels: log2 of the ring dimension and bits of the chain's primes, of which SEAL keeps the last one for keys. The
# smallest rings with room for the values, and in them the largest scales with 128 bits.
CHAINS = {1: (13, [60, 40, 60]), 3: (13, [45, 35, 35, 35, 45]), 8: (14, [50, *[40] * 8, 50])}


def context(log_ring: int, bits: list[int]) -> Any:
    """The client's context with all keys."""
    made = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 1 << log_ring, coeff_mod_bit_sizes=bits)
    made.global_scale = 2 ** bits[1]
    made.generate_galois_keys()
    return made


def keys(levels: int) -> tuple[Any, Any]:
    """(the client's context, the server's)."""
    log_ring, bits = CHAINS[levels]
    tell("made", compile_s=None, secrets=[secret(log_ring, sum(bits))], setting=f"{bits[1]} bits a level")
    client, seconds = timed(context, log_ring, bits)
    sent = client.serialize(save_public_key=True, save_secret_key=False, save_galois_keys=True, save_relin_keys=True)
    tell("keys", keys_s=seconds.clock, keys_cpu_s=seconds.cores, key_bytes=len(sent))
    return client, tenseal.context_from(sent)


def vectors(given: dict[str, np.ndarray], levels: int, work: Any) -> None:
    """Evaluate `work` on encrypted vectors that the server reads."""
    client, server = keys(levels)
    evaluate(
        given["samples"].reshape(len(given["samples"]), -1),
        lambda sample: tenseal.ckks_vector(client, sample.astype(float).tolist()).serialize(),
        lambda sent: work(tenseal.ckks_vector_from(server, sent)).serialize(),
        lambda answer: np.array(tenseal.ckks_vector_from(client, answer).decrypt()),
        len,
    )


def dot(given: dict[str, np.ndarray]) -> None:
    weights = given["w0"].ravel().tolist()
    vectors(given, 1, lambda x: x.dot(weights))


def perceptron(given: dict[str, np.ndarray]) -> None:
    first, bias, second, last = (given[name].tolist() for name in ("w0", "b0", "w1", "b1"))
    columns = [[list(column) for column in zip(*rows, strict=True)] for rows in (first, second)]
    vectors(given, 3, lambda x: (x.mm(columns[0]) + bias).square().mm(columns[1]) + last)


def matrix(kernels: np.ndarray, side: int) -> np.ndarray:
    """The matrix of a convolution with stride 2 and padding 2, from channels of side x side to channels of half that."""
    outputs, inputs, size, _ = kernels.shape
    half = side // 2
    made = np.zeros((inputs, side, side, outputs, half, half))
    for row in range(half):
        for column in range(half):
            for down in range(size):
                for right in range(size):
                    y, x = 2 * row + down - 2, 2 * column + right - 2
                    if 0 <= y < side and 0 <= x < side:
                        made[:, y, x, :, row, column] = kernels[:, :, down, right].T
    return made.reshape(inputs * side * side, outputs * half * half)


def lenet(given: dict[str, np.ndarray]) -> None:
    """Its own convolution of an image, which it has for the first layer only; the second is a product by its matrix."""
    kernels = given["w0"]
    second, seconds = timed(lambda: matrix(given["w1"], 14).tolist())
    client, server = keys(8)  # packing the channels takes a level too
    biases = [given["b0"].tolist(), np.repeat(given["b1"], 49).tolist(), given["b2"].tolist(), given["b3"].tolist()]
    dense = [given[name].T.tolist() for name in ("w2", "w3")]

    def encrypt(sample: np.ndarray) -> tuple[bytes, int]:
        padded = np.pad(sample[0], 2).astype(float).tolist()
        sent, windows = tenseal.im2col_encoding(client, padded, 5, 5, 2)
        return sent.serialize(), windows

    def run(sent: tuple[bytes, int]) -> bytes:
        columns = tenseal.ckks_vector_from(server, sent[0])
        channels = [
            columns.conv2d_im2col(kernel[0].tolist(), sent[1]) + bias
            for kernel, bias in zip(kernels, biases[0], strict=True)
        ]
        x = tenseal.CKKSVector.pack_vectors(channels).square()
        x = (x.mm(second) + biases[1]).square()
        x = (x.mm(dense[0]) + biases[2]).square()
        return (x.mm(dense[1]) + biases[3]).serialize()

    tell("made", compile_s=seconds.clock)
    evaluate(
        given["samples"],
        encrypt,
        run,
        lambda answer: np.array(tenseal.ckks_vector_from(client, answer).decrypt()),
        lambda sent: len(sent[0]),
    )


def bootstrap(_: dict[str, np.ndarray]) -> None:
    if not any("bootstrap" in name.lower() for name in [*dir(tenseal), *dir(tenseal.CKKSVector)]):
        raise Missing("SEAL has no bootstrap")
    raise Missing("has a bootstrap that this job does not use")


if __name__ == "__main__":
    main({"dot": dot, "perceptron": perceptron, "lenet": lenet, "bootstrap-15": bootstrap, "bootstrap-16": bootstrap})
