"""Speed, always as a ratio against a limit measured in the same run. Not a test: nothing here fails CI."""
