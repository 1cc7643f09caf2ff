"""From a PyTorch module to encrypted answers: the README's example."""

import heliograph as hg  # before torch, so that OpenMP's idle threads sleep
import torch
from torch.nn import GELU, Linear, Sequential

torch.manual_seed(0)
network = Sequential(Linear(64, 64), GELU(), Linear(64, 10)).eval()  # stands for a model that you trained
x = torch.rand(256, 64)  # samples of what it will see: they give the ranges, and half of them check the result

private = hg.Private(network, calibration=x, classes=10)  # 128 bits of security
print(private.report)  # the bill, before the first key is made
same = private.score(x, network(x).argmax(1), mode="simulate")  # with the errors of encryption, but no keys
print(f"the network's own class on {same:.0%} of the samples")
print(f"classes {private.predict(x[:4])} encrypted, {network(x[:4]).argmax(1).numpy()} in the clear")
