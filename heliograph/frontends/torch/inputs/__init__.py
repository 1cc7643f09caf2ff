"""What enters a traced program: examples, ranges, samples, token ids, masks."""
