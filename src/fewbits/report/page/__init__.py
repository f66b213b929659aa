"""Pages: one HTML file per report that opens offline, with plots, sortable tables and every command line."""
