"""What all commands share: parsing, signals, exit codes, output, completion."""
