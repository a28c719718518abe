"""Operation graphs of a training step: the model, and the loader for Chakra execution traces."""
