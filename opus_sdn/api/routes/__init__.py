"""The routes, by resource. Every one has an operation id of the form verb_noun and lists its problems."""
