"""The whole job once, on images that come with the package."""
