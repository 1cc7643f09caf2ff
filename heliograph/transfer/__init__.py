"""Training a classifier on encrypted features: the client encrypts, the server trains, the client says when to stop.

After HETAL (Lee, Lee, Kim, Shin and Lee, "HETAL: Efficient Privacy-preserving Transfer Learning with Homomorphic
Encryption", ICML 2023): softmax regression with Nesterov's momentum on minibatches in a fixed order. The client
decrypts validation logits and stops the training early by their loss. Beyond the paper, one hidden layer can be trained
too. A step is one program with state, compiled by the ordinary pipeline.
"""
