"""The agent of a host: its ranks talk to it over a Unix socket, and it speaks for them to the controller."""
