"""The vvs command: arguments to calls, errors to sentences and exit codes."""
