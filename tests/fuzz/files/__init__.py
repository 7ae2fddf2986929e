"""Damaged and hostile files, and what reading them may do."""
