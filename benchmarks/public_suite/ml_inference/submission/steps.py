"""The seven steps of a submission to the public benchmark of encrypted inference, and what is done once before them.

    steps.py build                trains the network, compiles an artifact for each size
    steps.py STEP SIZE            one of the harness' executables (build_task.sh makes them)

The working folder is that in which the harness runs. Client and server share files alone: the server's steps read the
artifact, the evaluation keys and ciphertexts, and never the folder `secret`.
"""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import shutil
import sys
from pathlib import Path

import numpy as np

NAMES = ("single", "small", "medium", "large")
IMAGES = (1, 15, 1_000, 10_000)
# Images at once that are planned; "max" is one in each slot.
BATCHES: tuple[int | str, ...] = (1, 8, 32, "max")
HERE = Path(__file__).resolve().parent
MODEL = HERE / "model.npz"
EPOCHS = 30


# The model's encoded plaintexts, which the server maps.
PLAINTEXTS = HERE / "build" / "plaintexts"


def artifact_of(size: int) -> Path:
    return HERE / "build" / f"{NAMES[size]}.helio"


def train() -> None:
    """784-128-10 with squares, on the training images as the harness has them, moved by up to a pixel."""
    import torch

    raw = Path("datasets/single/MNIST/raw")
    images = np.fromfile(raw / "train-images-idx3-ubyte", dtype=np.uint8)[16:].reshape(-1, 28, 28)
    labels = torch.from_numpy(np.fromfile(raw / "train-labels-idx1-ubyte", dtype=np.uint8)[8:].astype(np.int64))
    wide = torch.nn.functional.pad(torch.from_numpy(images.astype(np.float32) / 255), (1, 1, 1, 1))
    torch.manual_seed(1)
    hidden, last = torch.nn.Linear(784, 128), torch.nn.Linear(128, 10)
    parameters = [*hidden.parameters(), *last.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=EPOCHS * (len(images) // 128))
    for _ in range(EPOCHS):
        order = torch.randperm(len(images))
        for start in range(0, len(images) - 127, 128):
            taken = order[start : start + 128]
            down, right = torch.randint(0, 3, (2,)).tolist()
            moved = wide[taken, down : down + 28, right : right + 28].reshape(-1, 784)
            loss = torch.nn.functional.cross_entropy(last(hidden(moved) ** 2), labels[taken], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
    arrays = {name: value.detach().numpy() for name, value in zip(("w1", "b1", "w2", "b2"), parameters, strict=True)}
    np.savez(MODEL, calibration=images[:512].reshape(-1, 784).astype(np.float32) / 255, **arrays)


def compiled(size: int) -> hg.Artifact:
    """The artifact that is predicted to take least time for this many images."""
    import torch

    with np.load(MODEL, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.last = torch.nn.Linear(784, 128), torch.nn.Linear(128, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.hidden(x)
            return self.last(hidden * hidden)

    module = Network()
    for parameter, name in zip(module.parameters(), ("w1", "b1", "w2", "b2"), strict=True):
        parameter.data = torch.from_numpy(arrays[name])
    samples = arrays["calibration"]
    program = hg.trace(
        module.eval(), torch.from_numpy(samples[:1]), input_range=(0.0, 1.0), calibration=samples, name="mnist"
    )
    found = [hg.compile(program, hg.Options(batch=batch)) for batch in BATCHES]
    reports = [artifact.report.to_dict() for artifact in found]
    seconds = [report["predicted_ms"] * -(-IMAGES[size] // report["batch"]) for report in reports]
    return found[int(np.argmin(seconds))]


def build() -> None:
    if not MODEL.exists():
        train()
    (HERE / "build").mkdir(exist_ok=True)
    for size in range(len(NAMES)):
        if not artifact_of(size).exists():
            artifact = compiled(size)
            artifact.save(artifact_of(size))
            print(f"{NAMES[size]}: {artifact.report!r}")


def client_key_generation(size: int, io: Path) -> None:
    public = hg.Artifact.load(artifact_of(size)).public()
    client = hg.Client(public)
    for name in ("public_keys", "secret"):
        (io / name).mkdir(parents=True, exist_ok=True)
    client.evaluation_keys().save(io / "public_keys" / "evaluation.keys")
    client.save(io / "secret" / "client.key", overwrite=True)


def server_preprocess_model() -> None:
    """Encode the models of the sizes that have keys, by an evaluation under a key of the server's own.

    The harness does not say which size it is about to run.
    """
    for size, name in enumerate(NAMES):
        if not (Path("io") / name / "public_keys").exists():
            continue
        artifact = hg.Artifact.load(artifact_of(size))
        client = hg.Client(artifact.public())
        with hg.Server(artifact, client.evaluation_keys(), plaintexts=PLAINTEXTS) as server:
            server.run(next(iter(client.encrypt_many(np.zeros((1, 784))))))


def client_preprocess_input(size: int, io: Path) -> None:
    pixels = np.loadtxt(Path("datasets") / NAMES[size] / "intermediate" / "test_pixels.txt", dtype=np.float32, ndmin=2)
    (io / "intermediate").mkdir(parents=True, exist_ok=True)
    np.save(io / "intermediate" / "pixels.npy", pixels)


def client_encode_encrypt_input(size: int, io: Path) -> None:
    client = hg.Client.load(io / "secret" / "client.key")
    up = io / "ciphertexts_upload"
    shutil.rmtree(up, ignore_errors=True)
    up.mkdir()
    pixels = np.load(io / "intermediate" / "pixels.npy")
    for number, encrypted in enumerate(client.encrypt_many(pixels)):
        encrypted.save(up / f"{number:04}.ct")


def server_encrypted_compute(size: int, io: Path) -> None:
    down = io / "ciphertexts_download"
    shutil.rmtree(down, ignore_errors=True)
    down.mkdir()
    keys = hg.EvaluationKeys.load(io / "public_keys" / "evaluation.keys")
    with hg.Server(hg.Artifact.load(artifact_of(size)), keys, plaintexts=PLAINTEXTS) as server:
        for path in sorted((io / "ciphertexts_upload").glob("*.ct")):
            server.run(hg.EncryptedInput.load(path)).save(down / path.name)


def client_decrypt_decode(size: int, io: Path) -> None:
    client = hg.Client.load(io / "secret" / "client.key")
    sent = (hg.EncryptedInput.load(path).receipt() for path in sorted((io / "ciphertexts_upload").glob("*.ct")))
    answers = (hg.EncryptedOutput.load(path) for path in sorted((io / "ciphertexts_download").glob("*.ct")))
    np.save(io / "intermediate" / "logits.npy", client.decrypt_many(answers, of=sent))


def client_postprocess(size: int, io: Path) -> None:
    classes = np.load(io / "intermediate" / "logits.npy").argmax(axis=1)
    (io / "encrypted_model_predictions.txt").write_text("".join(f"{number}\n" for number in classes))


STEPS = {
    step.__name__: step
    for step in (
        client_key_generation,
        client_preprocess_input,
        client_encode_encrypt_input,
        server_encrypted_compute,
        client_decrypt_decode,
        client_postprocess,
    )
}


def main() -> None:
    step, *rest = sys.argv[1:]
    if step == "build":
        build()
    elif step == "server_preprocess_model":
        server_preprocess_model()
    else:
        size = int(rest[0])
        STEPS[step](size, Path("io") / NAMES[size])


if __name__ == "__main__":
    main()
