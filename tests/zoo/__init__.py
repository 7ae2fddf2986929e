"""Kinds of models and what a user does with them: each pair works or says why not."""
