"""Loads models of tf_keras and tfmot, and layers of older kerasmem files."""
