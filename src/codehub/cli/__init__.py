"""The command line: one file per verb group. A verb imports what it needs when it runs, so --help stays instant."""
