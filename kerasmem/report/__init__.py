"""What was measured, shown to a person: tables, progress, one HTML page."""
