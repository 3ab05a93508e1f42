"""The pages, the file list of ARCHITECTURE.md and the site, beside what makes them."""
