"""A program of OpenFHE's Python interface from a recording."""

from __future__ import annotations

from heliograph.tools.exports.recording import Plain, Recording, Step

_HEAD = '''"""{title}

Run it where OpenFHE for Python is installed: it makes keys, encrypts the example beside it, evaluates the program, and
prints how far the decrypted slots are from the exact ones. `evaluate` is the server's part. The context is not checked
for security: OpenFHE chooses special primes of its own, which need not be those of the artifact.
"""

import re
from pathlib import Path

import numpy as np
import openfhe

ARTIFACT = {fingerprint!r}
RING_DIM, LEVELS, SCALE_BITS, FIRST_BITS, DIGITS = {parameters}
PRIMES = {primes}
ROTATIONS = {rotations}
# (name, level, log2 of the scale) of each encrypted input.
INPUTS = {inputs}
# log2 of the scale of each output.
OUTPUTS = {outputs}
ARRAYS = np.load(Path(__file__).with_suffix(".npz"), allow_pickle=False)


def context():
    parameters = openfhe.CCParamsCKKSRNS()
    parameters.SetSecretKeyDist(openfhe.UNIFORM_TERNARY)
    parameters.SetSecurityLevel(openfhe.HEStd_NotSet)
    parameters.SetRingDim(RING_DIM)
    parameters.SetBatchSize(RING_DIM // 2)
    parameters.SetMultiplicativeDepth(LEVELS)
    parameters.SetScalingModSize(SCALE_BITS)
    parameters.SetFirstModSize(FIRST_BITS)
    parameters.SetScalingTechnique(openfhe.FIXEDMANUAL)
    parameters.SetKeySwitchTechnique(openfhe.HYBRID)
    parameters.SetNumLargeDigits(DIGITS)
    cc = openfhe.GenCryptoContext(parameters)
    for feature in (openfhe.PKE, openfhe.KEYSWITCH, openfhe.LEVELEDSHE):
        cc.Enable(feature)
    text = openfhe.Serialize(cc, openfhe.JSON)
    text = text.decode() if isinstance(text, bytes) else text
    found = [int(word) for word in re.findall(r'"cm":\\s*\\{{[^{{}}]*?"v":\\s*(\\d+)', text)]
    if found[: len(PRIMES)] != PRIMES:
        raise SystemExit("this version of OpenFHE chooses other primes than the program was compiled for")
    return cc


def of_degree(x, degree):
    """OpenFHE takes scales for powers of two and refuses what it thinks leaves too few levels; the plan knows better."""
    x.SetNoiseScaleDeg(degree)
    x.SetScalingFactor(2.0 ** (degree * SCALE_BITS))
    return x


def plain(cc, value, log_scale, level, beside=None):
    """A plaintext of a true scale; OpenFHE gets the nominal one. A complex vector is a pair."""
    vector = ARRAYS[value] if isinstance(value, str) else np.full(RING_DIM // 2, value)
    if np.iscomplexobj(vector):
        return tuple(encoded(cc, part, log_scale, level, beside) for part in (vector.real, vector.imag))
    return encoded(cc, vector, log_scale, level, beside)


def encoded(cc, vector, log_scale, level, beside):
    scaled = np.ascontiguousarray(vector * 2.0 ** (log_scale - SCALE_BITS))
    try:
        made = cc.MakeCKKSPackedPlaintext(scaled, 1, LEVELS - level, None, vector.size)
    except RuntimeError as error:
        # OpenFHE refuses values that all round to zero.
        if "Scaling factor too small" not in str(error):
            raise
        made = cc.MakeCKKSPackedPlaintext(np.zeros_like(scaled), 1, LEVELS - level, None, vector.size)
    return of_degree(made, 1 if beside is None else beside.GetNoiseScaleDeg())


def mul_plain(cc, x, factor):
    if not isinstance(factor, tuple):
        return cc.EvalMult(x, factor)
    return cc.EvalAdd(cc.EvalMult(x, factor[0]), times_i(cc, cc.EvalMult(x, factor[1])))


def mul_scalar(cc, x, value, log_scale):
    return cc.EvalMult(x, float(value * 2.0 ** (log_scale - SCALE_BITS)))


def times_i(cc, x):
    product = cc.EvalMult(x, complex(0.0, 2.0**-SCALE_BITS))
    product.SetNoiseScaleDeg(x.GetNoiseScaleDeg())
    product.SetScalingFactor(x.GetScalingFactor())
    return product


def rescale(cc, x):
    degree = x.GetNoiseScaleDeg()
    if degree == 2:
        return cc.Rescale(x)
    return of_degree(cc.Rescale(of_degree(x.Clone(), 2)), max(1, degree - 1))


def level_drop(cc, x, levels):
    degree = x.GetNoiseScaleDeg()
    if x.GetLevel() + levels + degree - 1 <= LEVELS:
        return cc.LevelReduce(x, None, levels)
    return of_degree(cc.LevelReduce(of_degree(x.Clone(), 1), None, levels), degree)


def evaluate(cc, inputs):
    """The encrypted outputs of encrypted inputs, in the order of INPUTS."""
    {arguments} = inputs
'''
_TAIL = """    return [{outputs}]


def main():
    cc = context()
    keys = cc.KeyGen()
    cc.EvalMultKeyGen(keys.secretKey)
    if ROTATIONS:
        cc.EvalRotateKeyGen(keys.secretKey, ROTATIONS)
    inputs = []
    for name, level, log_scale in INPUTS:
        vector = plain(cc, f"in/{name}", log_scale, level)
        inputs.append(cc.Encrypt(keys.publicKey, vector))
    for number, output in enumerate(evaluate(cc, inputs)):
        exact = ARRAYS[f"out/{number}"]
        found = cc.Decrypt(output, keys.secretKey)
        found.SetLength(RING_DIM // 2)
        # OpenFHE decodes at the nominal scale.
        nominal = output.GetNoiseScaleDeg() * SCALE_BITS
        slots = np.array(found.GetRealPackedValue()) * 2.0 ** (nominal - OUTPUTS[number])
        errors = np.abs(slots - exact)
        print(f"output {number}: largest value {np.abs(exact).max():.6g}, error: largest {errors.max():.3g}", end="")
        print(f", median {np.median(errors):.3g}")


if __name__ == "__main__":
    main()
"""

_CALLS = {
    "add": "cc.EvalAdd({0}, {1})",
    "sub": "cc.EvalSub({0}, {1})",
    "negate": "cc.EvalNegate({0})",
    "mul": "cc.EvalMultNoRelin({0}, {1})",
    "relinearize": "cc.Relinearize({0})",
    "add_plain": "cc.EvalAdd({0}, {plain})",
    "mul_plain": "mul_plain(cc, {0}, {plain})",
    "mul_scalar": "mul_scalar(cc, {0}, {value!r}, {log_scale!r})",
    "times_i": "times_i(cc, {0})",
    "rotate": "cc.EvalRotate({0}, {amount})",
    "conjugate": "cc.EvalRotate({0}, 2 * RING_DIM - 1)",
    "rescale": "rescale(cc, {0})",
    "level_drop": "level_drop(cc, {0}, {levels})",
}


def openfhe_python(found: Recording) -> str:
    """The program's text. Its arrays are in a file of the same name with the ending .npz."""
    ring = found.ring
    rotations = {int(step.attrs["amount"]) for step in found.steps if step.primitive == "rotate"}
    conjugates = any(step.primitive == "conjugate" for step in found.steps)
    head = _HEAD.format(
        title=f"{found.name!r}, exported by Heliograph as a program of OpenFHE for Python.",
        fingerprint=found.fingerprint,
        parameters=(ring.ring_dim, ring.levels, ring.scale_bits, ring.first_mod_bits, ring.digits),
        primes=list(ring.primes),
        rotations=sorted(rotations) + [2 * ring.ring_dim - 1] * conjugates,
        inputs=[(entry.name, entry.value.level, entry.log_scale) for entry in found.inputs],
        outputs=list(found.log_scales),
        arguments="".join(f"v{entry.value.number}, " for entry in found.inputs).rstrip(),
    )
    body, last = [], _last_uses(found)
    for place, step in enumerate(found.steps):
        body.append(f"    v{step.result.number} = {_call(step)}")
        # Values that nothing reads any more are given back.
        if gone := sorted({value.number for value in step.operands if last[value.number] == place}):
            body.append(f"    del {', '.join(f'v{number}' for number in gone)}")
    outputs = ", ".join(f"v{value.number}" for value in found.outputs)
    return head + "\n".join(body) + "\n" + _TAIL.replace("{outputs}", outputs)


def _call(step: Step) -> str:
    operands = [f"v{value.number}" for value in step.operands]
    plain = "" if step.plain is None else _plain(step.plain)
    return _CALLS[step.primitive].format(*operands, plain=plain, **step.attrs)


def _plain(plain: Plain) -> str:
    beside = "" if plain.beside is None else f", v{plain.beside}"
    return f"plain(cc, {plain.value!r}, {float(plain.log_scale)!r}, {plain.level}{beside})"


def _last_uses(found: Recording) -> dict[int, int]:
    """The number of each value -> the place of the last step that reads it; outputs are read at the end."""
    last: dict[int, int] = {}
    for place, step in enumerate(found.steps):
        for value in step.operands:
            last[value.number] = place
        if step.plain is not None and step.plain.beside is not None:
            last[step.plain.beside] = max(place, last.get(step.plain.beside, 0))
    return last | {value.number: len(found.steps) for value in found.outputs}
