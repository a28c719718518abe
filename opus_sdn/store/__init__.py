"""What the controller remembers: the only package that knows SQL, and an in-memory twin of it."""
