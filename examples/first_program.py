"""From a PyTorch module to an encrypted answer, in a dozen lines: the README's example."""

import heliograph as hg  # before torch, so that OpenMP's idle threads sleep
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).eval()
samples = torch.rand(256, 16)

program = hg.trace(model, samples[:1], input_range=(0, 1), calibration=samples, name="first")
artifact = hg.compile(program, hg.Options(security_bits=128))
print(artifact.report)

client = hg.Client(artifact.public())  # no weights in it; makes and keeps the secret key
server = hg.Server(artifact, client.evaluation_keys())  # never sees it
answer = client.decrypt(server.run(client.encrypt(samples[0])))
print(abs(answer - model(samples[:1])[0].detach().numpy()).max() < artifact.report.to_dict()["predicted_max_abs_error"])
