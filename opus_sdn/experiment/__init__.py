"""The published experiments at this machine's scale: real ranks, a real controller, emulated switches."""
