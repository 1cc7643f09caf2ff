"""The inputs of a traced program: examples, ranges, samples, token ids, masks."""
