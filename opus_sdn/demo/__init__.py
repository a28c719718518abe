"""Real PyTorch ranks on one machine: the programs they run and the launcher that starts them.

Nothing here is needed by a controller or by a rank in production; importing this package imports no torch.
"""
