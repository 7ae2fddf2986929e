"""What each layer runs, per framework: tables from the class name to a function."""
