"""Options, checks and printing that several commands use."""
