"""The command line: one file per command. No module imports torch before a command needs it, so that --help is fast."""
