"""Pictures of what kerasmem shows, for the README and the site."""
