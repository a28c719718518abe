"""What runs inside a training process: the HTTP client, the rank's session and the PyTorch backend `opus`.

Only modules named `torch_*` import torch. The rest also serves programs without it: the self-test, the
benchmarks, the test suite.
"""
