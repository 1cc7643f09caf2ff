"""From a PyTorch module to an encrypted answer: the README's example."""

import heliograph as hg  # before torch, so that OpenMP's idle threads sleep
import torch
from torch.nn import GELU, Linear, Sequential

torch.manual_seed(0)
model = Sequential(Linear(64, 64), GELU(), Linear(64, 10)).eval()  # stands for a model that you trained
x = torch.rand(256, 64)  # samples of what it will see: they give the ranges, and half of them check the result

artifact = hg.compile(model, calibration=x)  # 128 bits of security
print(artifact.report)  # the bill

client = hg.Client(artifact.public())  # makes the secret key and keeps it; the public part holds no weights
server = hg.Server(artifact, client.evaluation_keys())  # never sees that key
answer = client.decrypt(server.run(client.encrypt(x[0])))
print(f"class {answer.argmax()} encrypted, {model(x[:1]).argmax()} in the clear")
