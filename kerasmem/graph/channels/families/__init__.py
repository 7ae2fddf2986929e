"""What is known of each family of operations."""
