"""The REST API: wire models, problems, routes, and the server around them."""
