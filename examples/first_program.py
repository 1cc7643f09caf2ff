"""From a PyTorch module to an encrypted answer: the README's example."""

import heliograph as hg  # before torch, so that OpenMP's idle threads sleep
import torch

# A model of your own; this one learns which of the first three numbers is the largest.
torch.manual_seed(0)
x = torch.rand(256, 16)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(300):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()

program = hg.trace(model.eval(), x[:1], input_range=(0, 1), calibration=x, name="first")
artifact = hg.compile(program)  # 128 bits of security
print(artifact.report)  # the bill

client = hg.Client(artifact.public())  # makes the secret key and keeps it; the public part holds no weights
server = hg.Server(artifact, client.evaluation_keys())  # never sees that key
answer = client.decrypt(server.run(client.encrypt(x[0])))

clear = model(x[:1])[0].detach().numpy()
print(f"off by {abs(answer - clear).max() / abs(clear).max():.1%} of the largest output")
print(f"class {answer.argmax()} encrypted, {clear.argmax()} in the clear")
