"""Tables for the terminal: pure functions from records to Rich renderables."""
