"""A function of one's own: its meaning and range in one call; then in the language and in a PyTorch model."""

import heliograph as hg  # before torch

import numpy as np
import torch

hg.register_function("bump", lambda x: np.exp(-(x**2)), low=-3, high=3, slope=0.86)
hg.register_function("mish", lambda x: x * np.tanh(np.logaddexp(0.0, x)), torch_op="aten.mish")

program = hg.parse("""
program own
input x: secret tensor[4] in [-2, 2]
output y = bump(x) with degree = 12
""")
artifact = hg.compile(program, hg.Options(precision_bits=16))
x = np.array([-2.0, -0.5, 0.0, 1.0])
client = hg.Client(artifact.public())
with hg.Server(artifact, client.evaluation_keys()) as server:
    answer = client.decrypt(server.run(client.encrypt(x)))
print("bump, encrypted:", np.round(answer, 2) + 0.0)
print("in the clear:   ", np.round(np.exp(-(x**2)), 2))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Mish(), torch.nn.Linear(8, 2)).eval()
traced = hg.trace(model, torch.zeros(1, 4), input_range=(-2, 2), name="mish_network")
print(hg.compile(traced, hg.Options(degree=15)).report.to_dict()["ranges"][0]["function"], "is compiled")
