"""Models of tf_keras and tfmot, and layers that files of earlier versions contain."""
