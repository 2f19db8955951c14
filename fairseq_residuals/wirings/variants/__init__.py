"""One file per paper. Every module here is imported, and registers its variants, when the plugin is."""
